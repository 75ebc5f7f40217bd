//! Loads the manifests of a volume: of the last checkpoint, and of a prepared one.

use rowmill_io::{DeviceError, Volume};

use super::error::FileError;
use super::manifest::Manifest;
use super::marker::is_marked;
use super::name::{MANIFEST_PREPARED, RESTORING};
use crate::error::StoreError;

/// The manifest of a volume; `None` when there is no store.
pub(crate) fn load_manifest(volume: &dyn Volume) -> Result<Option<Manifest>, StoreError> {
    if_stored(volume, Manifest::load)
}

/// As [`load_manifest`], with the bytes of the file.
pub(crate) fn load_manifest_with_bytes(
    volume: &dyn Volume,
) -> Result<Option<(Manifest, Vec<u8>)>, StoreError> {
    if_stored(volume, Manifest::load_with_bytes)
}

fn if_stored<T>(
    volume: &dyn Volume,
    load: fn(&dyn Volume) -> Result<T, FileError>,
) -> Result<Option<T>, StoreError> {
    match volume.open(RESTORING) {
        Ok(_) => return Err(StoreError::Restoring { location: volume.location() }),
        Err(DeviceError::Missing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    match load(volume) {
        Ok(loaded) => Ok(Some(loaded)),
        Err(FileError::Missing { name }) if is_marked(volume)? => Err(StoreError::Corrupt {
            what: format!("the store in {} has a checkpoint, but its {name} is missing", volume.location()),
        }),
        Err(FileError::Missing { .. }) => Ok(None),
        Err(error) => Err(located(volume, error)),
    }
}

/// A file error as a store error, with the location.
pub(crate) fn located(volume: &dyn Volume, error: FileError) -> StoreError {
    match error {
        FileError::Newer { found, supported, .. } => {
            StoreError::Newer { location: volume.location(), found, supported }
        }
        FileError::Corrupt { name, what } => {
            StoreError::Corrupt { what: format!("{name} of {} is damaged: {what}", volume.location()) }
        }
        error => error.into(),
    }
}

/// The manifest of the prepared checkpoint of a volume, if any.
///
/// # Errors
/// When the manifest is damaged.
pub(crate) fn load_prepared(volume: &dyn Volume) -> Result<Option<Manifest>, StoreError> {
    match Manifest::load_from(volume, MANIFEST_PREPARED) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(FileError::Missing { .. }) => Ok(None),
        Err(error) => Err(located(volume, error)),
    }
}

impl From<FileError> for StoreError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Device(DeviceError::Full { .. }) => Self::Full { cause: error.to_string() },
            FileError::Device(error) => Self::Device(error),
            FileError::AttachmentName { name } => Self::Option {
                option: "attachment name",
                expected: "1 to 100 letters, digits, '.', '_' or '-'".into(),
                got: name,
            },
            error => Self::Corrupt { what: error.to_string() },
        }
    }
}
