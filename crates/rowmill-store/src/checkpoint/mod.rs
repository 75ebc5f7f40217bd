//! Checkpoints: making a store durable at once, opening it at a checkpoint, and checking what is stored.
//!
//! A checkpoint is atomic and may be prepared first and committed later. Opening loads the index of the checkpoint it
//! stands at. `fsck` reads every block of a store and repairs what it can prove.

mod checkpoint;
mod fsck;
mod loading;
mod opening;
mod prepared;
mod recovery;

pub use fsck::{FsckReport, fsck};
pub(crate) use prepared::settle;
