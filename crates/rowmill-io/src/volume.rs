//! A flat folder of devices and small files, which holds all data of one store.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::sync::Arc;

use crate::{Device, DeviceError};

/// A file that is written sequentially.
pub trait FileWriter: Write + Send {
    /// Make everything written so far durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`] or [`DeviceError::Full`].
    fn sync(&mut self) -> Result<(), DeviceError>;
}

/// The volume's lock; held while a process has the volume open for writing.
pub trait VolumeLock: Send + Sync + Debug {}

/// A flat folder; names are plain file names. A created, renamed or removed name is durable only after
/// [`Volume::sync`].
pub trait Volume: Send + Sync + Debug {
    /// Open a device; create it if missing and `writable`.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] when it does not exist and `writable` is false.
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError>;

    /// Create or truncate a file.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError>;

    /// Open a file for reading from its beginning.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] when it does not exist.
    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError>;

    /// Atomically rename `from` to `to`, replacing `to`.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError>;

    /// Remove a file or device.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] when it does not exist.
    fn remove(&self, name: &str) -> Result<(), DeviceError>;

    /// Names in the folder, sorted.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn list(&self) -> Result<Vec<String>, DeviceError>;

    /// Make creations, renames and removals durable.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn sync(&self) -> Result<(), DeviceError>;

    /// Take the volume's write lock. Only one process, and one handle in it, can hold it.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] with the holder's process id.
    fn lock(&self) -> Result<Box<dyn VolumeLock>, DeviceError>;

    /// Location of the volume, as text for users.
    fn location(&self) -> String;

    /// Path of a file or device of the volume, as text for users.
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.location())
    }

    /// How devices are read ("`io_uring`, `O_DIRECT`", or "pread" with the reason), as text for users.
    fn describe(&self) -> String;
}
