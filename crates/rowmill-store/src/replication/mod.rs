//! Replication: copies of a store elsewhere.
//!
//! A pinned checkpoint stays readable while it is copied. Changes between two checkpoints bring a copy up to
//! date. A share is the part of another store's rows that one of many ranks owns.

mod changes;
mod pin;
mod share;

pub use changes::{ChangedRows, ChangedTable, Changes, Replayed};
pub use pin::{CheckpointPart, FILES_ATTACHMENT, PartReader, PinnedCheckpoint};
pub use share::{Keeper, Share};
