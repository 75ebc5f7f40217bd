//! Errors of the files of a checkpoint.

use rowmill_io::DeviceError;

/// Why a file of a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FileError {
    /// The volume has no manifest: there is no checkpoint and so no store.
    #[error("there is no {name}")]
    Missing {
        /// The manifest.
        name: &'static str,
    },
    /// A newer build wrote the manifest.
    #[error("{name} has format version {found}, this build reads up to {supported}")]
    Newer {
        /// The manifest.
        name: &'static str,
        /// Its version.
        found: u32,
        /// Newest version this build reads.
        supported: u32,
    },
    /// The bytes of a file are not the bytes that were written.
    #[error("{name} is damaged: {what}")]
    Corrupt {
        /// The file.
        name: String,
        /// Which check found it.
        what: String,
    },
    /// The name of an attachment is not allowed in a file name.
    #[error("the name of an attachment must have 1 to 100 letters, digits, '.', '_' or '-', got {name:?}")]
    AttachmentName {
        /// The name.
        name: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl FileError {
    pub(super) fn corrupt(name: &str, what: impl Into<String>) -> Self {
        Self::Corrupt { name: name.to_owned(), what: what.into() }
    }

    /// The error for a file that a manifest names and that cannot be opened.
    pub(super) fn opening(error: DeviceError) -> Self {
        match error {
            DeviceError::Missing { name } => Self::Corrupt { name, what: "it does not exist".into() },
            error => Self::Device(error),
        }
    }
}
