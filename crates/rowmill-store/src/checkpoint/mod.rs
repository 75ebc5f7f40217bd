//! Checkpoints: making a store durable, opening it at a checkpoint, and `fsck`.
//!
//! A checkpoint is atomic and may be prepared first and committed later. Opening loads the index of the
//! chosen checkpoint. `fsck` reads every block of a store and repairs it by keeping all intact rows.

mod checkpoint;
mod fsck;
mod loading;
mod opening;
mod prepared;
mod recovery;

pub use fsck::{FsckReport, fsck};
pub(crate) use prepared::settle;
