//! Errors of opening a node.

use rowmill_io::DeviceError;
use rowmill_store::StoreError;

use crate::IdentityError;

/// Why a node cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The folder of a subsystem cannot be used, or another node uses it.
    #[error(transparent)]
    Folder(#[from] DeviceError),
    /// The names that hosts know the data by cannot be read or made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system gives no threads.
    #[error(
        "cannot start the threads that pool rows: {0}; lower pooling_threads or raise the limit on threads"
    )]
    Threads(std::io::Error),
}
