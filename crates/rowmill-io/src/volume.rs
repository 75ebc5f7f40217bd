//! A flat folder of devices and small files: everything one store keeps.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::sync::Arc;

use crate::{Device, DeviceError};

/// A file being written from its beginning to its end.
pub trait FileWriter: Write + Send {
    /// Make everything written so far durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`] or [`DeviceError::Full`].
    fn sync(&mut self) -> Result<(), DeviceError>;
}

/// Held for as long as a process has the volume open.
pub trait VolumeLock: Send + Sync + Debug {}

/// A flat folder. Names are plain file names. A created, renamed or removed name is durable only after
/// [`Volume::sync`].
pub trait Volume: Send + Sync + Debug {
    /// Open a device, creating it when `writable` and missing.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] when it does not exist and `writable` is false.
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError>;

    /// Create or truncate a file.
    ///
    /// # Errors
    /// As the operating system.
    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError>;

    /// Read a file from its beginning.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] when it does not exist.
    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError>;

    /// Replace `to` by `from` in one atomic step.
    ///
    /// # Errors
    /// As the operating system.
    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError>;

    /// Remove a file or device.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] when it does not exist.
    fn remove(&self, name: &str) -> Result<(), DeviceError>;

    /// Names in the folder, sorted.
    ///
    /// # Errors
    /// As the operating system.
    fn list(&self) -> Result<Vec<String>, DeviceError>;

    /// Make creations, renames and removals durable.
    ///
    /// # Errors
    /// As the operating system.
    fn sync(&self) -> Result<(), DeviceError>;

    /// Take the volume for writing; only one process (and one handle in it) may hold it.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] with the holder.
    fn lock(&self) -> Result<Box<dyn VolumeLock>, DeviceError>;

    /// Where the volume is, for people.
    fn location(&self) -> String;

    /// Where a file or device of the volume is, for people.
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.location())
    }

    /// How the devices are read ("`io_uring`, `O_DIRECT`", or "pread" with the reason), for people.
    fn describe(&self) -> String;
}
