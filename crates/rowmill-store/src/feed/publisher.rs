//! Publishing what changed: a round over all shards, by a thread, by a checkpoint, or when asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::frame::FeedChange;
use super::runs::Runs;
use super::writer::FeedWriter;
use crate::StoreError;
use crate::group::Group;
use crate::rounds::Rounds;
use crate::shard::Shard;
use crate::store::Groups;

/// Rows copied under one hold of a shard's lock: about 50 us.
const COPY_ROWS: usize = 256;
/// Bytes collected before they are written.
const COLLECTED_BYTES: usize = 1 << 20;

/// The feed of an open store.
#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<State>,
    /// Why nothing is published any more.
    failure: Mutex<Option<String>>,
    rows: AtomicU64,
    sequence: AtomicU64,
}

#[derive(Debug)]
struct State {
    writer: FeedWriter,
    runs: Runs,
}

/// A checkpoint's hold on the feed, from before its cut until its frame is written.
pub(crate) struct FeedCut<'a> {
    feed: &'a Feed,
    groups: Vec<Arc<Group>>,
    state: MutexGuard<'a, State>,
}

impl Feed {
    pub(super) fn new(writer: FeedWriter) -> Self {
        let sequence = AtomicU64::new(writer.last());
        let state = Mutex::new(State { writer, runs: Runs::default() });
        Self { state, failure: Mutex::default(), rows: AtomicU64::new(0), sequence }
    }

    /// Publish what has changed up to now; the last sequence number.
    pub(crate) fn publish(&self, groups: &[Arc<Group>]) -> Result<u64, StoreError> {
        let mut state = self.state.lock();
        self.check()?;
        let result = self.round(&mut state, groups);
        self.settle(groups, result)
    }

    /// Rows published, and the last sequence number.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.rows.load(Relaxed), self.sequence.load(Relaxed))
    }

    /// Why nothing is published any more.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Publish nearly everything and hold the feed for a cut; none when it has failed.
    pub(crate) fn begin_cut(&self, groups: Vec<Arc<Group>>) -> Option<FeedCut<'_>> {
        let mut state = self.state.lock();
        self.check().ok()?;
        let result = self.round(&mut state, &groups);
        self.settle(&groups, result).ok()?;
        Some(FeedCut { feed: self, groups, state })
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
                    let more = cell.state.write().take_unpublished(
                        &group.core,
                        &mut from,
                        COPY_ROWS,
                        |table, id, weights| runs.push(table, id, weights),
                    );
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

    /// Pass a result on. After a failure nothing is collected any more: the feed ends here, and followers
    /// are told to start again when the store is next opened.
    fn settle<T>(&self, groups: &[Arc<Group>], result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.inspect_err(|error| {
            self.failure.lock().get_or_insert_with(|| error.to_string());
            for cell in groups.iter().flat_map(|group| &group.shards) {
                cell.state.write().stop_publishing();
            }
        })
    }
}

impl FeedCut<'_> {
    /// Collect what is left in a shard of a group; until the last, nobody can change any.
    pub(crate) fn collect(&mut self, group: &Group, shard: &mut Shard) {
        let runs = &mut self.state.runs;
        shard.take_unpublished(&group.core, &mut 0, usize::MAX, |table, id, weights| {
            runs.push(table, id, weights);
        });
    }

    /// Publish it with the frame of the checkpoint; the sequence number of that, 0 when the feed failed.
    pub(crate) fn finish(mut self, epoch: u64) -> u64 {
        let State { writer, runs } = &mut *self.state;
        let written = runs.write(writer).and_then(|rows| {
            let sequence = writer.append(&FeedChange::Checkpoint { epoch })?;
            writer.flush()?;
            self.feed.rows.fetch_add(rows, Relaxed);
            self.feed.sequence.store(sequence, Relaxed);
            Ok(sequence)
        });
        self.feed.settle(&self.groups, written).unwrap_or(0)
    }
}

/// Start the thread that publishes.
pub(crate) fn start(feed: Arc<Feed>, groups: Groups, interval: Duration) -> Result<Rounds, StoreError> {
    Rounds::start("rowmill-feed", interval, move |_| {
        let groups: Vec<_> = groups.read().clone();
        // After a failure, which whoever asks the store is told, nothing is published any more.
        feed.publish(&groups).is_ok()
    })
}
