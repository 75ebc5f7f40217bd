//! Replication: copies of a store elsewhere.
//!
//! A pinned checkpoint stays readable while it is copied. Changes between two checkpoints bring a copy up to
//! date. A share is the part of another store's rows that one of many ranks owns. A copy of weights leaves out optimizer state.

mod changes;
mod pin;
mod share;
mod weights;

pub use changes::{ChangedRows, ChangedTable, Changes, Replayed};
pub use pin::{CheckpointPart, FILES_ATTACHMENT, PartReader, PinnedCheckpoint};
pub use share::{Keeper, Share};
pub use weights::{WeightsSource, WeightsTarget, copy_weights};
