//! Checkpoints of a store to and from object stores: S3 and what speaks its protocol, Google Cloud
//! Storage, Azure, and folders.
//!
//! [`push`] copies a checkpoint to a URL while training goes on, [`checkpoints`] lists what is there, and
//! [`restore`] makes a folder of one that opens at exactly that checkpoint. What lies behind a URL is
//! described in `layout`. The rules:
//!
//! - A checkpoint is there or not there: one conditional request makes it visible, after everything it
//!   names.
//! - What a visible checkpoint names is not removed. Whatever is not named, of pushes that were cut short
//!   too, is removed by the next push.
//! - One store writes to a URL. Another one, or one whose past is another, is refused.
//! - Every byte is under a checksum that is checked before a restored folder is taken for a store.
//!
//! Requests run on one thread, a bounded number at a time, with bounded retries.
#![forbid(unsafe_code)]

mod error;
mod history;
mod layout;
mod push;
mod remote;
mod restore;
mod runtime;
#[cfg(test)]
mod tests;

pub use error::RemoteError;
pub use history::{RemoteCheckpoint, checkpoints};
pub use push::{PushInfo, push};
pub use remote::Remote;
pub use restore::{RestoreInfo, restore};
