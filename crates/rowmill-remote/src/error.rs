//! What pushing, listing and restoring could not do.

use std::path::PathBuf;

use rowmill_io::DeviceError;
use rowmill_store::StoreError;

/// Why a checkpoint could not be pushed, listed or restored. A push that fails leaves what was visible as
/// it was; a restore that fails leaves a folder that is no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Not the URL of an object store.
    #[error("{url:?} is no URL of an object store ({cause}): give s3://, gs://, az:// or file:// and a path")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        cause: String,
    },
    /// An option outside its range.
    #[error("{option} must be {expected}, got {got}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it was.
        got: String,
    },
    /// A request failed, and failed again when tried again.
    #[error("{operation} {url} failed: {cause}")]
    Request {
        /// What was tried.
        operation: &'static str,
        /// The object, or the folder of objects.
        url: String,
        /// The last answer.
        cause: String,
    },
    /// The server overwrites what it was told not to overwrite.
    #[error("{url} does not honour If-None-Match: two writers could not be told apart; use another server")]
    Unconditional {
        /// The object that was overwritten.
        url: String,
    },
    /// Somebody else pushed in the meantime.
    #[error(
        "another writer pushed checkpoint {other} to {url} while checkpoint {epoch} was on its way: stop one of \
         the two, or give each a URL of its own"
    )]
    Conflict {
        /// Where to.
        url: String,
        /// The checkpoint that was being pushed.
        epoch: u64,
        /// The one that came before it.
        other: u64,
    },
    /// What is there is not the past of this store.
    #[error(
        "{url} holds checkpoint {latest} of another writer, which checkpoint {epoch} of this store does not \
         follow: push to a URL of its own, or restore that checkpoint and go on from it"
    )]
    Foreign {
        /// Where to.
        url: String,
        /// The newest checkpoint there.
        latest: u64,
        /// The one that was to be pushed.
        epoch: u64,
    },
    /// There is no such checkpoint.
    #[error("no checkpoint {wanted} at {url}; {known}")]
    NoCheckpoint {
        /// Where.
        url: String,
        /// The number asked for, or "at all".
        wanted: String,
        /// Those that are there, or what to do.
        known: String,
    },
    /// A newer build wrote it.
    #[error("{url} has format version {found}, this build reads up to {supported}: upgrade rowmill")]
    Newer {
        /// The object.
        url: String,
        /// Its version.
        found: u32,
        /// Newest version this build reads.
        supported: u32,
    },
    /// The bytes of an object are not those that were pushed.
    #[error("{url} is damaged: {what}; restore another checkpoint")]
    Corrupt {
        /// The object.
        url: String,
        /// How that was seen.
        what: String,
    },
    /// The folder to restore to holds something else.
    #[error("{folder} is not empty, it holds {name:?}: restore to a new or empty folder")]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// Something in it.
        name: String,
    },
    /// The caller does not want to wait any longer.
    #[error("interrupted")]
    Interrupted,
    /// The store, or the folder, could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<DeviceError> for RemoteError {
    fn from(error: DeviceError) -> Self {
        Self::Store(error.into())
    }
}
