//! Bringing cold rows into memory before they are asked for.
//!
//! Threads of the store take announced ids from a bounded queue, read the cold ones and put them where
//! the coming get finds them. They never take clocks, never wait for one and skip rows whose clock
//! somebody holds: they are being updated, and the update brings them in (MLKV, Section III-C). A read
//! that fails is only counted, because the get that needs the row will meet the same error and report it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rowmill_kernels::{UniqueScratch, segment_unique};

use crate::StoreError;
use crate::group::Group;
use crate::index::Found;
use crate::keys::Keys;
use crate::shard::{Miss, Reason};
use crate::walk::walk;

/// Announcements that may wait; more are dropped and counted.
const QUEUE: usize = 64;
/// Threads that look ahead: while one brings in what it read, the other keeps the device busy.
pub(crate) const THREADS: usize = 2;
/// Rows read in one go: many beside what the device takes at once, and few beside what a step reads. When
/// the step begins first, it reads them again itself.
const CHUNK_ROWS: usize = 1024;

/// Where announced rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Into memory, kept there for a coming step (at most half of the rows' memory): with 1 for the next
    /// step to begin, with 2 for the one behind it. What is not read when that step begins is left to it.
    Buffer {
        /// How many steps ahead: 1 to 63, others count as the nearest of these.
        steps: u64,
    },
    /// Into the cache, where they compete with other rows.
    Cache,
}

/// Ids of tables of one group that will be asked for soon.
#[derive(Debug)]
pub(crate) struct Announcement {
    pub(crate) group: Arc<Group>,
    /// Table within the group, and its ids.
    pub(crate) ids: Vec<(u32, Vec<u64>)>,
    pub(crate) reason: Reason,
}

/// The queue and the threads behind it.
#[derive(Debug)]
pub(crate) struct Lookahead {
    sender: Option<SyncSender<Announcement>>,
    threads: Vec<JoinHandle<()>>,
    /// The end of the queue, where no threads have it.
    receiver: Option<Receiver<Announcement>>,
    pending: Arc<AtomicU64>,
}

impl Lookahead {
    /// A queue, with threads behind it or with [`Lookahead::first`].
    pub(crate) fn start(threaded: bool) -> Result<Self, StoreError> {
        let (sender, receiver) = sync_channel(QUEUE);
        let pending = Arc::new(AtomicU64::new(0));
        if !threaded {
            return Ok(Self { sender: Some(sender), threads: Vec::new(), receiver: Some(receiver), pending });
        }
        let receiver = Arc::new(Mutex::new(receiver));
        let mut lookahead = Self { sender: Some(sender), threads: Vec::new(), receiver: None, pending };
        for number in 0..THREADS {
            let (receiver, pending) = (Arc::clone(&receiver), Arc::clone(&lookahead.pending));
            let thread = std::thread::Builder::new()
                .name(format!("rowmill-lookahead-{number}"))
                .spawn(move || work(&receiver, &pending))?;
            lookahead.threads.push(thread);
        }
        Ok(lookahead)
    }

    /// Queue an announcement; `false` when the queue is full and it was dropped.
    pub(crate) fn announce(&self, announcement: Announcement) -> bool {
        self.pending.fetch_add(1, SeqCst);
        let sent = self.sender.as_ref().is_some_and(|sender| sender.try_send(announcement).is_ok());
        if !sent {
            self.pending.fetch_sub(1, SeqCst);
        }
        sent
    }

    /// Take the announcement that waits longest.
    pub(crate) fn first(&self) -> Option<Announcement> {
        let first = self.receiver.as_ref()?.try_recv().ok()?;
        self.pending.fetch_sub(1, SeqCst);
        Some(first)
    }

    /// Announcements not worked off yet.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.load(SeqCst)
    }

    /// Let the threads finish what is queued and end them.
    pub(crate) fn stop(&mut self) {
        self.sender = None;
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed; there is nothing to save from it.
            let _ = thread.join();
        }
    }
}

impl Drop for Lookahead {
    fn drop(&mut self) {
        self.stop();
    }
}

fn work(receiver: &Mutex<Receiver<Announcement>>, pending: &AtomicU64) {
    let mut scratch = UniqueScratch::default();
    loop {
        // Who waits for the next announcement keeps the lock, and the others wait for that.
        let Ok(announcement) = receiver.lock().recv() else { break };
        announcement.work_off(&mut scratch);
        drop(announcement);
        pending.fetch_sub(1, SeqCst);
    }
}

impl Announcement {
    /// Bring the announced rows into memory.
    pub(crate) fn work_off(&self, scratch: &mut UniqueScratch) {
        let mut unique: Vec<(u32, Vec<u64>)> = Vec::new();
        for (table, ids) in &self.ids {
            let mut distinct = Vec::new();
            segment_unique(ids, None, scratch, &mut distinct, &mut vec![0; ids.len()]);
            unique.push((*table, distinct));
        }
        let unique: Vec<(u32, &[u64])> = unique.iter().map(|(table, ids)| (*table, &ids[..])).collect();
        let keys = self.group.keys_of(&unique);
        if self.group.look_ahead(&keys, self.reason).is_err() {
            self.group.counters.lookahead_errors.fetch_add(1, Relaxed);
        }
    }
}

impl Group {
    /// Bring the cold rows of `keys` into memory, as far as there is room for announced rows.
    fn look_ahead(&self, keys: &Keys, reason: Reason) -> Result<(), StoreError> {
        self.counters.lookahead_rows.fetch_add(keys.len() as u64, Relaxed);
        let begun = || matches!(reason, Reason::Wanted(step) if step <= self.tickets.issued());
        let late = |rows: usize| self.counters.lookahead_late.fetch_add(rows as u64, Relaxed);
        if begun() {
            late(keys.len());
            return Ok(());
        }
        let reading = self.core.log.reading();
        let misses = self.find_cold(keys, reason);
        let mut rest = &misses[..];
        while let Some((chunk, behind)) =
            rest.split_at_checked(self.cold_chunk().min(CHUNK_ROWS).min(rest.len()))
        {
            if chunk.is_empty() {
                break;
            }
            if begun() {
                late(rest.len());
                break;
            }
            let cold = self.read_ahead(&reading, chunk)?;
            let admitted = self.admit_cold(chunk, &cold, reason)?;
            self.counters.lookahead_loaded.fetch_add(admitted as u64, Relaxed);
            rest = behind;
        }
        Ok(())
    }

    /// The rows of `keys` to be read. Those in memory are marked as wanted; those that a step holds are
    /// left alone.
    fn find_cold(&self, keys: &Keys, reason: Reason) -> Vec<Miss> {
        let mut misses = Vec::new();
        for (shard, cell) in self.shards.iter().enumerate() {
            if keys.of_shard(shard).is_empty() {
                continue;
            }
            let mut state = cell.state.write();
            let Ok(()) = walk(&self.core, &mut state, keys.of_shard(shard), |state, key, found| {
                let Some(Found { place, location }) = found else { return Ok::<(), Infallible>(()) };
                if let Some(slot) = location.slot() {
                    if let Reason::Wanted(step) = reason {
                        state.due.mark(slot, step);
                    }
                } else if let Some(row) = location.row()
                    && state.outstanding(key.table, key.id, place) == 0
                {
                    misses.push(Miss { key: *key, row });
                }
                Ok(())
            });
        }
        misses
    }
}
