//! The row store: embedding rows larger than memory, updated in place, with bounded staleness,
//! lookahead, and checkpoints that a crash cannot damage.
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
//! How a call runs: ids are split by shard ([`Table`], `keys`), shards find or make their rows
//! (`shard`, `acquire`), cold rows come from the log (`log`), and the work is done on addresses of rows
//! (`resolve`, `lookup`, `update`). What must survive a crash is written by `checkpoint`.

// What is not inlined into a function of an instruction set is compiled without it, and a prefetch that is a
// call of its own comes late.
#![allow(clippy::inline_always)]

mod account;
mod acquire;
mod admission;
mod background;
mod backward;
mod balance;
mod bits;
mod budget;
mod changes;
mod checkpoint;
mod cold;
mod coming;
mod compaction;
mod core;
mod due;
mod entering;
mod error;
mod evaluate;
mod event_clock;
mod eviction;
mod feed;
mod files;
mod fsck;
mod group;
mod hot_rows;
mod index_log;
mod index_room;
mod keys;
mod loading;
mod lookahead;
mod lookup;
mod mapping;
mod options;
mod out;
mod pin;
mod placement;
mod policy;
mod pooled;
mod prepared;
mod queue;
mod read;
mod recovery;
mod residents;
mod resolve;
mod rounds;
mod scatter;
mod seeded;
mod shard;
mod share;
mod sketch;
mod stamp;
mod stats;
mod store;
mod table;
mod table_state;
mod ticket;
mod update;
mod walk;
mod weights;
mod workers;
mod working_memory;

pub use background::{Background, Work};
pub use backward::RowGradients;
pub use changes::{ChangedRows, ChangedTable, Changes, Replayed};
pub use checkpoint::CheckpointInfo;
pub use error::StoreError;
pub use feed::{FeedChange, FeedEvent, FeedOptions, FeedReader};
pub use files::RESTORING;
pub use fsck::{FsckReport, fsck};
pub use lookahead::Destination;
pub use lookup::Lookup;
pub use options::StoreOptions;
pub use out::Pooled;
pub use pin::{CheckpointPart, PartReader, PinnedCheckpoint};
pub use pooled::AskedRows;
pub use queue::QueuedGet;
pub use rowmill_io::{DirectoryVolume, IoChoice, MemoryVolume, Volume};
pub use rowmill_rows::{
    Admission, Dtype, Eviction, EvictionRule, IdBag, IdRange, Initializer, OptimizerSpec, Pooling,
    StalenessBound, TableSpec,
};
#[cfg(feature = "seeded-bugs")]
pub use seeded::{SeededBug, seed_bug};
pub use share::Share;
pub use stats::{GroupStats, Stats, TableStats};
pub use store::Store;
pub use table::Table;
pub use ticket::Ticket;
