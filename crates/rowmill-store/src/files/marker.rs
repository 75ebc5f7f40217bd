//! The marker file of a folder with a store that has a checkpoint.
//!
//! A store that lost its manifest looks like a store before its first checkpoint. Without the marker it would
//! be opened as empty, and the rows of the lost checkpoint would be overwritten.

use std::io::Write;

use rowmill_io::{DeviceError, Volume};

use super::name::MARKER;

/// Content of the marker, for people who open it.
pub(crate) const MARK: &str =
    "This folder is a rowmill store; MANIFEST names the files of its last checkpoint.\n";

/// Write the marker; the first checkpoint must already be durable.
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

/// Whether the marker exists.
///
/// # Errors
/// As [`Volume::list`].
pub(crate) fn is_marked(volume: &dyn Volume) -> Result<bool, DeviceError> {
    Ok(volume.list()?.iter().any(|name| name == MARKER))
}
