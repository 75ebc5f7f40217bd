//! Checkpoints: making a store durable, opening it at a checkpoint, and `fsck`.
//!
//! A checkpoint is atomic and may be prepared first and committed later. Opening loads the index of the
//! chosen checkpoint. Versions are earlier checkpoints that are kept. `fsck` reads every block of a store and repairs it by keeping all intact rows.

mod alter;
mod checkpoint;
mod fsck;
mod loading;
mod opening;
mod prepared;
mod recovery;
mod rollback;
mod versions;

pub use fsck::{FsckReport, fsck};
pub(crate) use prepared::settle;
pub use prepared::settle_at;
pub use rollback::{drop_version, prepare_rollback, rollback};
pub use versions::{Best, NewVersion, VersionInfo, versions};
