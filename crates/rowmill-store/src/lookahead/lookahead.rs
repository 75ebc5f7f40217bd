//! Lookahead: prefetches cold rows into memory before they are looked up.
//!
//! Threads of the store take announced ids from a bounded queue, read the cold rows and load them into
//! memory, where the coming get finds them. These threads take no clocks and never wait for one. They skip
//! rows whose clock a step holds: such rows are being updated, and the update loads them (MLKV, Section
//! III-C). A failed read is only counted, because the get that needs the row will fail in the same way and
//! report it.
//!
//! Announcements wait while the device is behind or the room for announced rows is full. Before that, their
//! resident rows are marked. Otherwise these rows might leave memory to make room for others and would be
//! read again. They are marked step by step until nearly all rows in memory are marked. Evicting unmarked
//! rows is then Belady's rule. If all rows were marked, the victims would be arbitrary.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use rowmill_index::Found;
use rowmill_kernels::{UniqueScratch, segment_unique};
use rowmill_sync::{Condvar, Mutex, Poison, ranks};

use crate::error::StoreError;
use crate::group::{Group, walk};
use crate::memory::Claim;
use crate::shard::{Miss, Reason};
use crate::table::Keys;
use crate::threads::spawn;

/// Maximum number of waiting announcements; more are dropped and counted. It covers 16 groups with 64 steps
/// each. Their ids use at most a share of the memory budget.
const QUEUE: usize = 1024;
/// Bytes per row of the lists made for an announcement: keys and misses.
const LIST_BYTES: usize = 64;
/// Lookahead threads: while one loads the rows it has read, the other keeps the device busy.
pub(crate) const THREADS: usize = 2;
/// Rows per batch of reads: more than the device processes at once, but few compared with the rows of a step.
/// If the step begins first, it reads these rows again itself.
const CHUNK_ROWS: usize = 128;

/// Slots that are sampled to estimate how many rows in memory are marked.
const SLOTS_JUDGED: usize = 1024;
/// At least one slot in this many must hold an unmarked row, besides the rows of the running step. A search
/// for a victim passes about this many rows.
const LEAVING_SHARE: usize = 8;

/// Where announced rows are loaded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Into memory, and kept there for a coming step, in at most half of the memory for rows. 1 means the
    /// next step to begin, 2 the one after it. Rows that are not read when that step begins are left to it.
    Buffer {
        /// How many steps ahead, 1 to 63. Values outside are clamped.
        steps: u64,
    },
    /// Into memory, where they compete with other rows.
    Cache,
}

/// Announced ids of tables of one group.
#[derive(Debug)]
pub(crate) struct Announcement {
    pub(crate) group: Arc<Group>,
    /// Table within the group, and its ids.
    pub(crate) ids: Vec<(u32, Vec<u64>)>,
    reason: Reason,
    /// Whether the ids are deduplicated and counted.
    distinct: bool,
    /// Memory claim of the ids.
    claim: Claim,
}

/// The next work for an announcement.
#[derive(Debug)]
pub(crate) enum Task {
    /// Mark its resident rows, then let it wait for its turn to be read.
    Mark(Announcement),
    /// Load its cold rows.
    Read(Announcement),
    /// Mark and load at once.
    MarkAndRead(Announcement),
}

/// The result of a task.
#[derive(Debug)]
enum Outcome {
    Done,
    /// There is no room for more marked rows.
    Unmarked(Announcement),
    Marked(Announcement),
    /// There is no room to load more rows.
    Unread(Announcement),
}

/// Announcements that are not finished.
#[derive(Debug, Default)]
struct Waiting {
    /// Announcements whose rows are not marked yet.
    fresh: VecDeque<Announcement>,
    /// Announcements whose rows are marked.
    marked: VecDeque<Announcement>,
    /// Number of announcements that threads work on now.
    taken: usize,
    /// Groups without room for more marked rows until the next step begins.
    keep_no_more: Vec<u32>,
    /// Groups without room to load more rows.
    read_no_more: Vec<u32>,
    /// No more announcements will come.
    closed: bool,
    /// A thread has panicked: announcements are no longer processed.
    dead: bool,
}

impl Waiting {
    /// Number of announcements that can be processed now.
    fn len(&self) -> usize {
        if self.dead {
            return 0;
        }
        let fresh = self.fresh.iter().filter(|fresh| !fresh.is_among(&self.keep_no_more));
        let marked = self.marked.iter().filter(|marked| !marked.is_among(&self.read_no_more));
        fresh.count() + marked.count() + self.taken
    }

    /// The next task. An announcement that can be read at once is marked in the same pass.
    fn take(&mut self) -> Option<Task> {
        if self.dead {
            return None;
        }
        let task = match take_first(&mut self.fresh, &self.keep_no_more) {
            Some(first) if self.marked.is_empty() && self.fresh.is_empty() => Task::MarkAndRead(first),
            Some(first) => Task::Mark(first),
            None => Task::Read(take_first(&mut self.marked, &self.read_no_more)?),
        };
        self.taken += 1;
        Some(task)
    }

    /// Queue an unfinished announcement again, behind earlier steps.
    fn put_back(&mut self, outcome: Outcome) {
        self.taken -= 1;
        match outcome {
            Outcome::Done => {}
            Outcome::Unmarked(announcement) => {
                self.keep_no_more.push(announcement.group.core.number);
                insert(&mut self.fresh, announcement);
            }
            Outcome::Marked(announcement) => insert(&mut self.marked, announcement),
            Outcome::Unread(announcement) => {
                self.read_no_more.push(announcement.group.core.number);
                insert(&mut self.marked, announcement);
            }
        }
    }

    /// There may be room again.
    fn retry(&mut self) {
        self.keep_no_more.clear();
        self.read_no_more.clear();
    }
}

/// Take the first announcement that belongs to none of these groups.
fn take_first(waiting: &mut VecDeque<Announcement>, groups: &[u32]) -> Option<Announcement> {
    let first = waiting.iter().position(|announcement| !announcement.is_among(groups))?;
    waiting.remove(first)
}

/// Insert an announcement behind announcements of earlier steps.
fn insert(waiting: &mut VecDeque<Announcement>, announcement: Announcement) {
    let at = waiting.partition_point(|other| other.reason <= announcement.reason);
    waiting.insert(at, announcement);
}

#[derive(Debug, Default)]
struct AnnouncementQueue {
    waiting: Mutex<Waiting, ranks::Announcements>,
    arrived: Condvar,
}

impl AnnouncementQueue {
    /// Wait for the next task. `None` when the queue is closed and all is done.
    fn wait(&self) -> Option<Task> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(task) = waiting.take() {
                return Some(task);
            }
            if waiting.closed || waiting.dead {
                return None;
            }
            waiting = self.arrived.wait(waiting);
        }
    }

    fn work_off(&self, task: Task, scratch: &mut UniqueScratch) {
        let outcome = match task {
            Task::Mark(announcement) | Task::MarkAndRead(announcement) if !announcement.may_be_kept() => {
                Outcome::Unmarked(announcement)
            }
            Task::Mark(announcement) => Outcome::Marked(announcement.mark(scratch)),
            Task::Read(announcement) | Task::MarkAndRead(announcement) => announcement.read(scratch),
        };
        self.waiting.lock().put_back(outcome);
        self.arrived.notify_one();
    }
}

/// The queue and its threads.
#[derive(Debug)]
pub(crate) struct Lookahead {
    queue: Arc<AnnouncementQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl Lookahead {
    /// A queue with threads, or without: then [`Lookahead::turn`] does the work.
    pub(crate) fn start(threaded: bool, poison: &Arc<Poison>) -> Result<Self, StoreError> {
        let mut lookahead = Self { queue: Arc::default(), threads: Vec::new() };
        for number in 0..if threaded { THREADS } else { 0 } {
            let (queue, poison) = (Arc::clone(&lookahead.queue), Arc::clone(poison));
            let thread = spawn(&format!("lookahead-{number}"), move || {
                let worked = poison.catch("a lookahead thread", || {
                    let mut scratch = UniqueScratch::default();
                    while let Some(task) = queue.wait() {
                        queue.work_off(task, &mut scratch);
                    }
                });
                if worked.is_err() {
                    queue.waiting.lock().dead = true;
                    queue.arrived.notify_all();
                }
            })?;
            lookahead.threads.push(thread);
        }
        Ok(lookahead)
    }

    /// Queue an announcement. Returns `false` when the queue is full and it was dropped.
    pub(crate) fn announce(&self, announcement: Announcement) -> bool {
        let mut waiting = self.queue.waiting.lock();
        if waiting.dead || waiting.fresh.len() + waiting.marked.len() >= QUEUE {
            return false;
        }
        waiting.fresh.push_back(announcement);
        waiting.retry();
        self.queue.arrived.notify_all();
        true
    }

    /// A step has begun, which may have made room for further announcements.
    pub(crate) fn step_begins(&self) {
        self.queue.waiting.lock().retry();
        self.queue.arrived.notify_all();
    }

    /// Take the next task, to be run in this thread. The caller runs it without holding a lock that
    /// announcing calls need.
    pub(crate) fn turn(&self) -> Option<impl FnOnce() + use<>> {
        let task = self.queue.waiting.lock().take()?;
        let queue = Arc::clone(&self.queue);
        Some(move || queue.work_off(task, &mut UniqueScratch::default()))
    }

    /// Whether a lookahead thread has panicked.
    pub(crate) fn is_dead(&self) -> bool {
        self.queue.waiting.lock().dead
    }

    /// Number of unfinished announcements. Announcements that wait for room are not counted.
    pub(crate) fn pending(&self) -> u64 {
        self.queue.waiting.lock().len() as u64
    }

    /// Let the threads finish all queued announcements, then end them.
    pub(crate) fn stop(&mut self) {
        self.queue.waiting.lock().closed = true;
        self.queue.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the thread was caught and has already poisoned the store.
            let _ = thread.join();
        }
    }
}

impl Drop for Lookahead {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Announcement {
    /// An announcement of ids by table. `None` when no memory is left to copy them.
    pub(crate) fn new(group: &Arc<Group>, ids: &[(u32, &[u64])], reason: Reason) -> Option<Self> {
        let bytes = ids.iter().map(|(_, ids)| size_of_val(*ids) as u64).sum();
        let claim = group.core.budget.announced.try_claim(bytes)?;
        let ids = ids.iter().map(|&(table, ids)| (table, ids.to_vec())).collect();
        Some(Self { group: Arc::clone(group), ids, reason, distinct: false, claim })
    }

    fn rows(&self) -> usize {
        self.ids.iter().map(|(_, ids)| ids.len()).sum()
    }

    fn is_among(&self, groups: &[u32]) -> bool {
        groups.contains(&self.group.core.number)
    }

    /// Whether its rows may be marked or loaded. Rows of the next step always may.
    fn may_be_kept(&self) -> bool {
        let Reason::Wanted(step) = self.reason else { return true };
        let rows = self.rows();
        if step <= self.group.tickets.issued() + 1 || self.group.may_keep_more(rows) {
            return true;
        }
        for cell in &self.group.shards {
            cell.state.write().refuse_ahead(rows / self.group.shards.len());
        }
        false
    }

    /// Mark the announced rows that are in memory.
    fn mark(mut self, scratch: &mut UniqueScratch) -> Self {
        self.make_distinct(scratch);
        let _lists = self.group.claim_lists(self.rows() * LIST_BYTES);
        if let Reason::Wanted(step) = self.reason
            && self.group.keep(&self.keys(), step).is_err()
        {
            self.group.counters.lookahead_errors.fetch_add(1, Relaxed);
        }
        self
    }

    /// Load the announced rows into memory, as far as there is room.
    fn read(mut self, scratch: &mut UniqueScratch) -> Outcome {
        self.make_distinct(scratch);
        let lists = self.group.claim_lists(self.rows() * LIST_BYTES);
        let looked = self.group.look_ahead(&self.keys(), self.reason);
        drop(lists);
        match looked {
            Ok(Ahead::Done) => Outcome::Done,
            Ok(Ahead::Full) => Outcome::Unread(self),
            Err(_) => {
                self.group.counters.lookahead_errors.fetch_add(1, Relaxed);
                Outcome::Done
            }
        }
    }

    fn make_distinct(&mut self, scratch: &mut UniqueScratch) {
        if self.distinct {
            return;
        }
        for (_, ids) in &mut self.ids {
            let mut distinct = Vec::new();
            segment_unique(ids, None, scratch, &mut distinct, &mut vec![0; ids.len()]);
            distinct.shrink_to_fit();
            *ids = distinct;
        }
        self.distinct = true;
        self.claim.shrink((self.rows() * size_of::<u64>()) as u64);
    }

    fn keys(&self) -> Keys {
        let ids: Vec<(u32, &[u64])> = self.ids.iter().map(|(table, ids)| (*table, &ids[..])).collect();
        self.group.keys_of(&ids)
    }
}

/// How far an announcement was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    /// All its rows are in memory, or its step has begun and reads the others.
    Done,
    /// There was no room for more rows.
    Full,
}

impl Group {
    /// Whether all rows are in memory, so that none needs to be read. Marks are then not needed either: at
    /// most the very first spill can come between an announcement and its step.
    pub(crate) fn all_in_memory(&self) -> bool {
        self.shards.iter().all(|cell| cell.state.read().all_in_memory())
    }

    /// Whether more rows may be marked, if a step uses about `rows_of_step` rows.
    fn may_keep_more(&self, rows_of_step: usize) -> bool {
        let judged = SLOTS_JUDGED / self.shards.len();
        let (mut slots, mut not_wanted) = (0, 0);
        for cell in &self.shards {
            let state = cell.state.read();
            slots += state.slots();
            not_wanted += state.slots_not_wanted(judged);
        }
        // Rows of the running step are no longer marked, but cannot leave.
        not_wanted >= rows_of_step.min(slots / 2) + slots / LEAVING_SHARE
    }

    /// Load the cold rows of `keys` into memory, as far as there is room for announced rows.
    fn look_ahead(&self, keys: &Keys, reason: Reason) -> Result<Ahead, StoreError> {
        let begun = || matches!(reason, Reason::Wanted(step) if step <= self.tickets.issued());
        let late = |rows: usize| self.counters.lookahead_late.fetch_add(rows as u64, Relaxed);
        if begun() {
            late(keys.len());
            return Ok(Ahead::Done);
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
            if matches!(reason, Reason::Wanted(_)) && !self.has_room_ahead(chunk) {
                return Ok(Ahead::Full);
            }
            let cold = self.read_ahead(&reading, chunk)?;
            let admitted = self.admit_cold(chunk, &cold, reason)?;
            self.counters.lookahead_loaded.fetch_add(admitted as u64, Relaxed);
            rest = behind;
        }
        Ok(Ahead::Done)
    }

    /// Whether there is room for these rows, judged by the shard of the first: shards fill evenly.
    fn has_room_ahead(&self, chunk: &[Miss]) -> bool {
        let shard = chunk[0].key.shard;
        let rows = chunk.iter().take_while(|miss| miss.key.shard == shard).count();
        self.shards[shard as usize].state.write().may_admit_ahead(rows)
    }

    /// Mark the rows of `keys` to stay in memory until a step. Cold ones are marked once they are loaded.
    fn keep(&self, keys: &Keys, step: u64) -> Result<(), StoreError> {
        for (shard, cell) in self.shards.iter().enumerate() {
            if keys.of_shard(shard).is_empty() {
                continue;
            }
            let mut state = cell.state.write();
            state.begin_wanting(&self.core)?;
            let Ok(()) = walk(&self.core, &mut state, keys.of_shard(shard), |state, key, found| {
                match found.map(|found| found.location.slot()) {
                    Some(Some(slot)) => state.due.mark(slot, step),
                    Some(None) => state.want(key, step),
                    None => {}
                }
                Ok::<(), Infallible>(())
            });
        }
        Ok(())
    }

    /// The cold rows of `keys`. Rows in memory are marked; rows that a step holds are skipped.
    fn find_cold(&self, keys: &Keys, reason: Reason) -> Vec<Miss> {
        let mut misses = Vec::new();
        for (shard, cell) in self.shards.iter().enumerate() {
            if keys.of_shard(shard).is_empty() {
                continue;
            }
            let mut state = cell.state.write();
            let Ok(()) = walk(&self.core, &mut state, keys.of_shard(shard), |state, key, found| {
                let Some(Found { entry, location }) = found else { return Ok::<(), Infallible>(()) };
                if let Some(slot) = location.slot() {
                    if let Reason::Wanted(step) = reason {
                        state.due.mark(slot, step);
                    }
                } else if let Some(row) = location.row()
                    && state.outstanding(key.table, key.id, entry) == 0
                {
                    misses.push(Miss { key: *key, row });
                }
                Ok(())
            });
        }
        misses
    }
}
