//! Checkpoints of a store in object stores: S3 and compatible servers, Google Cloud Storage, Azure, and
//! folders.
//!
//! [`push`] copies a checkpoint to a URL while training continues, [`checkpoints`] lists the checkpoints at a
//! URL, and [`restore`] makes a folder of one that opens as a store at exactly that checkpoint. `layout`
//! describes the objects at a URL. [`write_object`] and its like are for the checkpoints of many ranks, whose
//! stores each push to a URL below the common one. The rules:
//!
//! - A checkpoint becomes visible atomically, by one conditional request after all its objects are uploaded.
//! - No object of a visible checkpoint is removed. The next push removes all other objects, including those
//!   of interrupted pushes.
//! - Only one store writes to a URL. A store with another past is refused.
//! - Every byte has a checksum. It is verified before a restored folder opens as a store.
//!
//! Requests run on one thread, a bounded number at a time, with bounded retries.
#![forbid(unsafe_code)]

mod error;
mod history;
mod layout;
mod objects;
mod push;
mod remote;
mod restore;
mod runtime;
#[cfg(test)]
mod tests;

pub use error::RemoteError;
pub use history::{RemoteCheckpoint, checkpoints};
pub use objects::{list_objects, read_object, remove_objects, write_object};
pub use push::{PushInfo, push};
pub use remote::Remote;
pub use restore::{RestoreInfo, restore};
