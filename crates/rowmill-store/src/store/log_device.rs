//! The device of a group's log.

use std::sync::Arc;

use rowmill_io::{Device, DeviceError, MemoryVolume, Volume};
use rowmill_log::LogState;

use crate::error::StoreError;

/// File name of a group's log.
pub(crate) fn log_name(group: u32) -> String {
    format!("group-{group}.log")
}

/// Open the log of a group. A restored checkpoint has none for a group without rows: it is empty then.
///
/// # Errors
/// [`StoreError::Corrupt`] when the checkpoint has rows in a log that does not exist. It is not created.
pub(crate) fn log_device(
    volume: &dyn Volume,
    name: &str,
    state: &LogState,
    writable: bool,
) -> Result<Arc<dyn Device>, StoreError> {
    if !state.segments.is_empty() {
        let device = volume.device(name, false).map_err(|error| match error {
            DeviceError::Missing { .. } => StoreError::Corrupt {
                what: format!(
                    "{name} of {} does not exist, but the checkpoint has rows in it",
                    volume.location()
                ),
            },
            error => error.into(),
        })?;
        if !writable {
            return Ok(device);
        }
    } else if !writable {
        return Ok(MemoryVolume::new().device(name, true)?);
    }
    Ok(volume.device(name, true)?)
}
