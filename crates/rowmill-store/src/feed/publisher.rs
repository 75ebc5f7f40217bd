//! Publishes changes in rounds over all shards: by a thread, by a checkpoint, or by
//! [`Store::publish`](crate::Store::publish).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rowmill_sync::{Mutex, MutexGuard, Poison, ranks};

use super::frame::FeedChange;
use super::runs::Runs;
use super::writer::FeedWriter;
use crate::error::StoreError;
use crate::group::{Group, Groups};
use crate::shard::{FeedBacklog, Shard};
use crate::threads::Rounds;

/// Rows copied per acquisition of a shard's lock: about 50 us.
const COPY_ROWS: usize = 256;
/// Bytes collected before they are written.
const COLLECTED_BYTES: usize = 1 << 20;

/// The feed of an open store.
#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<State, ranks::Feed>,
    /// Why the feed publishes nothing until the next checkpoint.
    failure: Mutex<Option<String>, ranks::FeedFailure>,
    waiting: Arc<FeedBacklog>,
    rows: AtomicU64,
    sequence: AtomicU64,
}

#[derive(Debug)]
struct State {
    writer: FeedWriter,
    runs: Runs,
}

/// A checkpoint's exclusive use of the feed, from before its cut until its frame is written.
pub(crate) struct FeedCut<'a> {
    feed: &'a Feed,
    groups: Vec<Arc<Group>>,
    state: MutexGuard<'a, State>,
    /// Whether changes were lost, so that a new chain must start here.
    anew: bool,
}

impl Feed {
    pub(super) fn new(writer: FeedWriter, waiting: &Arc<FeedBacklog>) -> Self {
        let sequence = AtomicU64::new(writer.last());
        let state = Mutex::new(State { writer, runs: Runs::default() });
        let (failure, waiting) = (Mutex::default(), Arc::clone(waiting));
        Self { state, failure, waiting, rows: AtomicU64::new(0), sequence }
    }

    /// Publish all changes so far. Returns the last sequence number.
    pub(crate) fn publish(&self, groups: &[Arc<Group>]) -> Result<u64, StoreError> {
        let mut state = self.state.lock();
        self.check()?;
        let result = self.round(&mut state, groups);
        self.settle(groups, &mut state.runs, result)
    }

    /// Stop publishing. When this returns, no write is in progress.
    pub(crate) fn close(&self) {
        let _no_round = self.state.lock();
        self.failure.lock().get_or_insert_with(|| "the store is closed".into());
    }

    /// Number of rows published, and the last sequence number.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.rows.load(Relaxed), self.sequence.load(Relaxed))
    }

    /// Bytes of unpublished rows that left memory, and of deleted ids.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting.bytes()
    }

    /// Why the feed publishes nothing until the next checkpoint.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Publish nearly all changes, then hold the feed for a cut.
    pub(crate) fn begin_cut(&self, groups: Vec<Arc<Group>>) -> FeedCut<'_> {
        let mut state = self.state.lock();
        let result = self.check().and_then(|()| self.round(&mut state, &groups));
        let anew = self.settle(&groups, &mut state.runs, result).is_err();
        FeedCut { feed: self, groups, state, anew }
    }

    fn check(&self) -> Result<(), StoreError> {
        match &*self.failure.lock() {
            Some(cause) => Err(StoreError::FeedFailed { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    fn round(&self, state: &mut State, groups: &[Arc<Group>]) -> Result<u64, StoreError> {
        let State { writer, runs } = state;
        let mut rows = 0;
        for group in groups {
            for cell in &group.shards {
                let mut from = 0;
                loop {
                    let taken = cell.state.write().take_unpublished(
                        &group.core,
                        &mut from,
                        COPY_ROWS,
                        |table, id, weights| runs.push(table, id, weights),
                    );
                    let more = taken.ok_or_else(|| self.behind())?;
                    if runs.bytes() >= COLLECTED_BYTES {
                        rows += runs.write(writer)?;
                    }
                    if !more {
                        break;
                    }
                }
            }
        }
        rows += runs.write(writer)?;
        writer.flush()?;
        self.rows.fetch_add(rows, Relaxed);
        self.sequence.store(writer.last(), Relaxed);
        Ok(writer.last())
    }

    fn behind(&self) -> StoreError {
        let max = self.waiting.max();
        StoreError::FeedFailed {
            cause: format!(
                "rows that left memory and deleted ids exceeded {max} bytes before they were published: allow more \
                 (feed_waiting) or publish more often (feed_interval_s)"
            ),
        }
    }

    /// Map the result of a round. After a failure nothing is collected until the next checkpoint.
    fn settle<T>(
        &self,
        groups: &[Arc<Group>],
        runs: &mut Runs,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        result.inspect_err(|error| {
            self.failure.lock().get_or_insert_with(|| match error {
                StoreError::FeedFailed { cause } => cause.clone(),
                error => error.to_string(),
            });
            runs.clear();
            for cell in groups.iter().flat_map(|group| &group.shards) {
                cell.state.write().stop_publishing();
            }
        })
    }
}

impl FeedCut<'_> {
    /// Collect the remaining changes of a shard. Until the last shard is collected, no row can change.
    pub(crate) fn collect(&mut self, group: &Group, shard: &mut Shard) {
        let runs = &mut self.state.runs;
        let taken = shard.take_unpublished(&group.core, &mut 0, usize::MAX, |table, id, weights| {
            runs.push(table, id, weights);
        });
        self.anew |= taken.is_none() || runs.bytes() as u64 > self.feed.waiting.max();
        if self.anew {
            runs.clear();
            shard.begin_publishing(&self.feed.waiting);
        }
    }

    /// Publish the collected changes with the frame of the checkpoint. If changes were lost, start a new
    /// chain with that frame. Returns its sequence number, or 0 when the feed failed.
    pub(crate) fn finish(mut self, epoch: u64) -> u64 {
        let written = self.write(epoch).inspect(|_| *self.feed.failure.lock() = None);
        self.feed.settle(&self.groups, &mut self.state.runs, written).unwrap_or(0)
    }

    fn write(&mut self, epoch: u64) -> Result<u64, StoreError> {
        let State { writer, runs } = &mut *self.state;
        if self.anew {
            runs.clear();
            writer.begin_anew()?;
        }
        let rows = runs.write(writer)?;
        let sequence = writer.append(&FeedChange::Checkpoint { epoch })?;
        writer.flush()?;
        self.feed.rows.fetch_add(rows, Relaxed);
        self.feed.sequence.store(sequence, Relaxed);
        Ok(sequence)
    }
}

/// Start the publishing thread.
pub(crate) fn start(
    feed: Arc<Feed>,
    groups: Groups,
    interval: Duration,
    poison: Arc<Poison>,
) -> Result<Rounds, StoreError> {
    Rounds::start("feed", interval, poison, move |_| {
        let groups: Vec<_> = groups.read().clone();
        // The failure is kept for `stats()` and `publish()`. The next checkpoint starts a new chain.
        let _ = feed.publish(&groups);
        true
    })
}
