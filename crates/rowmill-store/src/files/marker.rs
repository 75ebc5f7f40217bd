//! The mark of a folder that holds a store with a checkpoint.
//!
//! A store that lost its manifest looks like one before its first checkpoint, and would be opened as an
//! empty one, over the rows of the lost one. The mark tells them apart.

use std::io::Write;

use rowmill_io::{DeviceError, Volume};

use super::name::MARKER;

/// What the mark says to a person.
pub(crate) const MARK: &str =
    "This folder is a rowmill store; MANIFEST names the files of its last checkpoint.\n";

/// Leave the mark; the first checkpoint must be durable.
///
/// # Errors
/// When the volume fails.
pub(crate) fn mark(volume: &dyn Volume) -> Result<(), DeviceError> {
    let failed = |error| DeviceError::from_io("write", volume.path(MARKER), 0, MARK.len(), error);
    let mut file = volume.create(MARKER)?;
    file.write_all(MARK.as_bytes()).map_err(failed)?;
    file.sync()?;
    drop(file);
    volume.sync()
}

/// Whether the mark is there.
///
/// # Errors
/// As [`Volume::list`].
pub(crate) fn is_marked(volume: &dyn Volume) -> Result<bool, DeviceError> {
    Ok(volume.list()?.iter().any(|name| name == MARKER))
}
