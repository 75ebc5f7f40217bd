//! How a store is opened.

use std::time::Duration;

use rowmill_io::IoChoice;
use rowmill_log::ROW_NUMBERS;

use crate::background::Background;
use crate::error::StoreError;
use crate::feed::FeedOptions;
use crate::threads::SPREAD_ROWS_MIN;

/// Smallest budget: I/O rings take about 1 MiB per thread, log buffers and index come on top.
const MEMORY_MIN: u64 = 16 << 20;

/// Options of [`crate::Store::open`].
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes of memory for everything: index, rows, buffers, I/O.
    pub memory: u64,
    /// Expert: bytes for resident rows and the log's write buffers alone, instead of what `memory` leaves.
    pub row_memory: Option<u64>,
    /// Threads that share the work of a large batch.
    pub threads: usize,
    /// Expert: rows from which on a batch is spread over the threads; tests spread every one.
    pub spread_rows_min: usize,
    /// Seed of the initializers.
    pub seed: u64,
    /// Longest wait for a row beyond its staleness bound.
    pub wait_deadline: Duration,
    /// Make the store if there is none.
    pub create: bool,
    /// Refuse every change; the store may be open for writing elsewhere.
    pub read_only: bool,
    /// Number of the checkpoint to open at, where one may wait to be committed; none: the last, and nothing waits.
    pub at: Option<u64>,
    /// Bytes of lists of changes kept for [`crate::Store::changes`], beyond those a checkpoint needs itself.
    pub history: u64,
    /// Publish what changes for other processes; none: no feed is kept.
    pub feed: Option<FeedOptions>,
    /// How devices are read.
    pub io: IoChoice,
    /// Expert: who writes, cleans and looks ahead.
    pub background: Background,
    /// Limit of a group's row places, for tests that exhaust them. A store must not be opened with a smaller limit than
    /// before.
    #[doc(hidden)]
    pub row_places: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            memory: 1 << 30,
            row_memory: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            spread_rows_min: SPREAD_ROWS_MIN,
            seed: 0,
            wait_deadline: Duration::from_secs(30),
            create: true,
            read_only: false,
            at: None,
            history: 64 << 20,
            feed: None,
            io: IoChoice::Auto,
            background: Background::Threads,
            row_places: ROW_NUMBERS,
        }
    }
}

impl StoreOptions {
    pub(crate) fn validate(&self) -> Result<(), StoreError> {
        if self.memory < MEMORY_MIN {
            return Err(StoreError::Option {
                option: "memory",
                expected: format!("at least {MEMORY_MIN} bytes (16 MiB)"),
                got: self.memory.to_string(),
            });
        }
        if let Some(rows) = self.row_memory
            && rows > self.memory
        {
            return Err(StoreError::Option {
                option: "row_memory",
                expected: format!("at most memory ({} bytes)", self.memory),
                got: rows.to_string(),
            });
        }
        if let Some(feed) = &self.feed {
            feed.validate()?;
        }
        if self.threads == 0 || self.threads > 256 {
            return Err(StoreError::Option {
                option: "threads",
                expected: "between 1 and 256".into(),
                got: self.threads.to_string(),
            });
        }
        Ok(())
    }
}
