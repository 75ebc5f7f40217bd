//! Options for opening a store.

use std::collections::BTreeMap;
use std::time::Duration;

use rowmill_io::IoChoice;
use rowmill_log::ROW_NUMBERS;
use rowmill_rows::{Admission, Eviction, IdRange};

use crate::error::StoreError;

/// Smallest batch, in rows, that is spread over threads (a hand-over costs about 5 us).
pub(crate) const SPREAD_ROWS_MIN: usize = 4096;
/// Smallest budget: I/O rings take about 1 MiB per thread, log buffers and index come on top.
const MEMORY_MIN: u64 = 16 << 20;

/// Smallest feed: the widest row, with its frame, must fit into a segment of it.
const BYTES_MIN: u64 = 32 << 20;
/// Smallest `waiting`: room for a few of the widest rows.
const WAITING_MIN: u64 = 1 << 20;
const INTERVAL_MAX: Duration = Duration::from_hours(1);

/// Options of [`crate::Store::open`].
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes of memory for everything: index, rows, buffers, I/O.
    pub memory: u64,
    /// Expert: bytes for resident rows and the log's write buffers, instead of the part of `memory` left for
    /// them.
    pub row_memory: Option<u64>,
    /// Threads that share the work of a large batch.
    pub threads: usize,
    /// Expert: smallest batch, in rows, that is spread over the threads. Tests spread every batch.
    pub spread_rows_min: usize,
    /// Seed of the initializers.
    pub seed: u64,
    /// Longest time to wait for a row beyond its staleness bound.
    pub wait_deadline: Duration,
    /// Create the store if there is none.
    pub create: bool,
    /// Refuse every change. Another process may have the store open for writing.
    pub read_only: bool,
    /// Number of the checkpoint to open at, if a prepared one may exist. `None`: the last one, and opening
    /// for writing fails if one is prepared.
    pub at: Option<u64>,
    /// Name or checkpoint number of the version to open, read-only. `None`: the last checkpoint.
    pub version: Option<String>,
    /// Bytes of change lists kept for [`crate::Store::changes`], beyond the lists that a checkpoint needs.
    pub history: u64,
    /// Publish changes for other processes. `None`: no feed.
    pub feed: Option<FeedOptions>,
    /// New rules and ranges of ids of existing tables, by name. Durable with the next checkpoint. Names without a table
    /// are skipped.
    pub alter: BTreeMap<String, TableChange>,
    /// How devices are read.
    pub io: IoChoice,
    /// Expert: whether threads or calls write segments, clean them and look ahead.
    pub background: Background,
    /// Limit on a group's row places, for tests that exhaust them. Never open a store with a smaller limit
    /// than before.
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
            version: None,
            history: 64 << 20,
            feed: None,
            alter: BTreeMap::new(),
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
        if let Some(version) = self.version.as_ref().filter(|_| !self.read_only || self.at.is_some()) {
            return Err(StoreError::Option {
                option: "version",
                expected: "given with read_only and without at; roll back to write to it (rowmill rollback)"
                    .into(),
                got: format!("{version:?}"),
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

/// What may change of a table with rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableChange {
    /// As before, or a longer range.
    pub ids: IdRange,
    /// Another rule, or none. Rows have a stamp or not as before: a rule that needs stamps cannot follow one that does
    /// not, or none, and the reverse.
    pub eviction: Option<Eviction>,
    /// Another rule, or none. A sketch of another size starts to count from zero.
    pub admission: Option<Admission>,
}

/// How a store publishes its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedOptions {
    /// Bytes of the feed's files. The oldest files are removed beyond this.
    pub bytes: u64,
    /// Longest time between two rounds of publishing.
    pub interval: Duration,
    /// Bytes of memory, beyond the budget, for rows that leave memory and ids that are deleted between two
    /// rounds. Beyond this limit the feed pauses until the next checkpoint, from which its followers start
    /// again.
    pub waiting: u64,
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self { bytes: 256 << 20, interval: Duration::from_millis(100), waiting: 64 << 20 }
    }
}

impl FeedOptions {
    pub(crate) fn validate(&self) -> Result<(), StoreError> {
        if self.bytes < BYTES_MIN {
            return Err(StoreError::Option {
                option: "feed",
                expected: format!("at least {BYTES_MIN} (32 MiB)"),
                got: self.bytes.to_string(),
            });
        }
        if self.waiting < WAITING_MIN {
            return Err(StoreError::Option {
                option: "feed_waiting",
                expected: format!("at least {WAITING_MIN} (1 MiB)"),
                got: self.waiting.to_string(),
            });
        }
        if self.interval.is_zero() || self.interval > INTERVAL_MAX {
            return Err(StoreError::Option {
                option: "feed_interval_s",
                expected: format!("above 0 and at most {}", INTERVAL_MAX.as_secs()),
                got: self.interval.as_secs_f64().to_string(),
            });
        }
        Ok(())
    }
}

/// Whether threads or calls write segments, clean them and look ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// Threads of the store do it.
    #[default]
    Threads,
    /// Calls do it: [`Store::turn`](crate::Store::turn), and any call that cannot continue otherwise. Nothing
    /// then depends on time or chance: equal calls make equal reads and writes, as simulations need.
    Turns {
        /// Must differ at every opening of a store. With threads it is drawn at random.
        incarnation: u64,
    },
}

impl Background {
    /// A number that differs at every opening: segments of a run that crashed must not look like segments of
    /// the next.
    pub(crate) fn incarnation(self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        match self {
            Self::Threads => std::collections::hash_map::RandomState::new().build_hasher().finish(),
            Self::Turns { incarnation } => incarnation,
        }
    }

    /// Whether the store has threads for this work.
    pub(crate) fn has_threads(self) -> bool {
        self == Self::Threads
    }
}
