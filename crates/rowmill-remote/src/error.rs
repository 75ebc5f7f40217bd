//! Errors of pushing, listing and restoring checkpoints.

use std::path::PathBuf;

use rowmill_io::DeviceError;
use rowmill_store::StoreError;

/// Why a checkpoint could not be pushed, listed or restored. After a failed push, the visible checkpoints are
/// unchanged. After a failed restore, the folder does not open as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Not the URL of an object store.
    #[error(
        "{url:?} is not the URL of an object store ({cause}): give s3://, gs://, az:// or file:// and a path"
    )]
    Url {
        /// The given URL.
        url: String,
        /// Why it is not valid.
        cause: String,
    },
    /// An option outside its range.
    #[error("{option} must be {expected}, got {got}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Permitted values.
        expected: &'static str,
        /// Given value.
        got: String,
    },
    /// A request failed, also after retries.
    #[error("{operation} {url} failed: {cause}")]
    Request {
        /// The operation.
        operation: &'static str,
        /// The object, or the folder of objects.
        url: String,
        /// Error of the last try.
        cause: String,
    },
    /// The server overwrote an object in spite of `If-None-Match`.
    #[error(
        "the server of {url} ignores If-None-Match, so two writers could overwrite each other: use another server"
    )]
    Unconditional {
        /// The object that was overwritten.
        url: String,
    },
    /// Another writer pushed at the same time.
    #[error(
        "another writer pushed checkpoint {other} to {url} while checkpoint {epoch} was being pushed: stop one of \
         the writers, or give each its own URL"
    )]
    Conflict {
        /// URL that was pushed to.
        url: String,
        /// The checkpoint that was being pushed.
        epoch: u64,
        /// The checkpoint that the other writer pushed first.
        other: u64,
    },
    /// The checkpoints at the URL are not the past of this store.
    #[error(
        "{url} holds checkpoint {latest} of another writer, and checkpoint {epoch} of this store does not \
         continue it: push to another URL, or restore that checkpoint and continue from it"
    )]
    Foreign {
        /// URL that was pushed to.
        url: String,
        /// The newest checkpoint there.
        latest: u64,
        /// The checkpoint to push.
        epoch: u64,
    },
    /// The checkpoint does not exist at the URL.
    #[error("no checkpoint {wanted} at {url}; {known}")]
    NoCheckpoint {
        /// URL that was searched.
        url: String,
        /// Requested number, or "at all".
        wanted: String,
        /// Existing checkpoints, or what to do.
        known: String,
    },
    /// A newer build wrote the object.
    #[error("{url} has format version {found}, this build reads up to {supported}: upgrade rowmill")]
    Newer {
        /// The object.
        url: String,
        /// Its format version.
        found: u32,
        /// Newest format version that this build reads.
        supported: u32,
    },
    /// The bytes of an object are not the bytes that were pushed.
    #[error("{url} is damaged: {what}; restore another checkpoint")]
    Corrupt {
        /// The object.
        url: String,
        /// How the damage was detected.
        what: String,
    },
    /// The folder to restore to contains other files.
    #[error("{folder} is not empty, it holds {name:?}: restore to a new or empty folder")]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// Name of one of them.
        name: String,
    },
    /// The caller interrupted the call.
    #[error("interrupted")]
    Interrupted,
    /// The store or the folder could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<DeviceError> for RemoteError {
    fn from(error: DeviceError) -> Self {
        Self::Store(error.into())
    }
}
