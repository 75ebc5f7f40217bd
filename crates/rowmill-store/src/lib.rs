//! The row store: embedding rows larger than memory, updated in place, with bounded staleness, lookahead, and
//! checkpoints that a crash cannot damage.
//!
//! ```
//! # use rowmill_store::*;
//! # fn main() -> Result<(), StoreError> {
//! # let folder = tempfile::tempdir().unwrap();
//! let options = StoreOptions { memory: 64 << 20, ..StoreOptions::default() };
//! let store = Store::open(folder.path(), options)?;
//! let spec = TableSpec {
//!     dim: 4,
//!     dtype: Dtype::F32,
//!     optimizer: OptimizerSpec::Sgd { lr: 0.5 },
//!     initializer: Initializer::Zeros,
//!     staleness: StalenessBound::Steps(0),
//!     ids: IdRange::Sparse,
//!     eviction: None,
//!     admission: None,
//! };
//! let users = store.table("users", &spec)?;
//! users.rmw(&[7, 7], &[1.0; 8], None, None)?; // gradients of one row add up
//! let mut row = [0.0; 4];
//! users.get(&[7], &mut row)?;
//! assert_eq!(row, [-1.0; 4]);
//! store.checkpoint(&[])?;
//! # Ok(())
//! # }
//! ```
//!
//! How a call runs: ids are split by shard ([`Table`], `table`), and shards find or create their rows
//! (`shard`, `lookup`). Cold rows are read from the log (`group`), and rows are then processed by address
//! (`lookup`, `update`). `checkpoint` writes the state that survives a crash.

// A function that is not inlined into a function compiled for an instruction set loses that instruction set.
// A prefetch behind a function call comes too late.
#![allow(clippy::inline_always)]
// A folder's main type lies in a file with the folder's name.
#![allow(clippy::module_inception)]

mod background;
mod checkpoint;
mod error;
mod feed;
mod files;
mod group;
mod lookahead;
mod lookup;
mod memory;
mod metrics;
mod options;
mod replication;
mod row_lifetime;
mod seeded;
mod shard;
mod staleness;
mod store;
mod table;
mod threads;
mod update;

pub use background::Work;
pub use checkpoint::{
    Best, FsckReport, NewVersion, VersionInfo, drop_version, fsck, prepare_rollback, rollback, settle_at,
    versions,
};
pub use error::StoreError;
pub use feed::{FeedChange, FeedEvent, FeedReader};
pub use files::RESTORING;
pub use group::Ticket;
pub use lookahead::Destination;
pub use lookup::{Lookup, Pooled};
pub use metrics::{GroupStats, Metric, MetricKind, MetricUnit, MetricValue, Stats, TableStats};
pub use options::{Background, FeedOptions, StoreOptions, TableChange};
pub use replication::{
    ChangedRows, ChangedTable, Changes, CheckpointPart, FILES_ATTACHMENT, Keeper, PartReader,
    PinnedCheckpoint, Replayed, Share, WeightsSource, WeightsTarget, copy_weights,
};
pub use rowmill_io::{DirectoryVolume, IoChoice, MemoryVolume, Volume};
pub use rowmill_rows::{
    Admission, Dtype, Eviction, EvictionRule, IdBag, IdRange, Initializer, OptimizerSpec, Pooling,
    StalenessBound, TableSpec,
};
#[cfg(feature = "seeded-bugs")]
pub use seeded::{SeededBug, seed_bug};
pub use store::{AskedRows, CheckpointInfo, QueuedGet, Store, Table};
pub use update::RowGradients;
