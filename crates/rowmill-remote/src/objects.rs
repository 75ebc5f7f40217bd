//! Single objects at a URL, for what belongs to the checkpoints of several stores together.

use crate::RemoteError;
use crate::remote::Remote;
use crate::runtime::block_on;

/// The bytes of an object; `None` if it does not exist. `interrupted` is called ten times per second.
///
/// # Errors
/// When the request fails.
pub fn read_object(
    remote: &Remote,
    key: &str,
    interrupted: &dyn Fn() -> bool,
) -> Result<Option<Vec<u8>>, RemoteError> {
    block_on(interrupted, remote.get(key))
}

/// Write an object; replaces an existing one. A reader sees the old bytes or the new ones.
///
/// # Errors
/// As [`read_object`].
pub fn write_object(
    remote: &Remote,
    key: &str,
    bytes: Vec<u8>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), RemoteError> {
    block_on(interrupted, remote.put(key, bytes))
}

/// The objects in a folder, sorted by key: key, and time of the last change in seconds since 1970.
///
/// # Errors
/// As [`read_object`].
pub fn list_objects(
    remote: &Remote,
    folder: &str,
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<(String, i64)>, RemoteError> {
    let listed = block_on(interrupted, remote.list(folder))?;
    Ok(listed.into_iter().map(|object| (object.key, object.modified_s)).collect())
}

/// Remove objects. Objects that do not exist are skipped.
///
/// # Errors
/// As [`read_object`].
pub fn remove_objects(
    remote: &Remote,
    keys: Vec<String>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), RemoteError> {
    block_on(interrupted, remote.remove(keys))
}
