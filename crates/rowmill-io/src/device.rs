//! The block device that all stored data is on.

use std::fmt::Debug;
use std::io;

/// Unit of every read, write and checksum, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// Upper bound of a device's length, in bytes. A larger offset is a bug in the caller.
const DEVICE_BYTES_MAX: u64 = 1 << 60;

/// Whole consecutive blocks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte; a multiple of [`BLOCK_BYTES`].
    pub offset: u64,
    /// Length; a positive multiple of [`BLOCK_BYTES`].
    pub bytes: usize,
}

/// The bytes of one span, borrowed during the callback, or the error of the read.
pub type ReadResult<'a> = Result<&'a [u8], DeviceError>;

/// Blocks that can be read in batches, written, and made durable.
///
/// A device does not verify its data: it may return stale, torn or misplaced blocks, and the caller must
/// detect them by checksum. Writes are durable only after [`Device::sync`] returns `Ok`. After a failed sync,
/// the state of every write since the last successful sync is unknown.
pub trait Device: Send + Sync + Debug {
    /// Read every span, in any order, and call `deliver(position in spans, result)` exactly once for each.
    /// The bytes are borrowed: copy what must outlive the call. The number of reads in flight is bounded,
    /// whatever the size of the batch. Neighbouring spans may be merged into one read.
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>));

    /// Write `blocks` (a multiple of [`BLOCK_BYTES`]) at `offset`, growing the device if needed.
    ///
    /// # Errors
    /// [`DeviceError::Full`] when no space is left, [`DeviceError::Io`] otherwise.
    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError>;

    /// Make every completed write durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; the caller must then no longer rely on unsynced writes.
    fn sync(&self) -> Result<(), DeviceError>;

    /// Free the space of a span. Reading it afterwards gives zeros or an error.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; the space then stays allocated, and nothing else changes.
    fn discard(&self, span: Span) -> Result<(), DeviceError>;

    /// Current length in bytes.
    fn bytes(&self) -> u64;
}

/// Errors of devices and volumes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No space left, or the file may not grow. Data of the last checkpoint is unaffected.
    #[error("no space left while writing {bytes} bytes to {name} at {offset}: free space on the file system")]
    Full {
        /// File or device.
        name: String,
        /// First byte of the write.
        offset: u64,
        /// Length of the write.
        bytes: usize,
    },
    /// An operation failed.
    #[error("{operation} of {name} at byte {offset} failed: {source}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// File or device.
        name: String,
        /// Offset of the operation, in bytes.
        offset: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file does not exist.
    #[error("{name} does not exist")]
    Missing {
        /// File or device.
        name: String,
    },
    /// Another process holds the volume's lock.
    #[error("{name} is in use by another process (pid {holder}); close it there or open read-only")]
    Locked {
        /// The volume.
        name: String,
        /// Process id of the holder; 0 if unknown.
        holder: u32,
    },
}

impl DeviceError {
    /// Convert an error of the operating system, from a call on `bytes` bytes of `name` at `offset`.
    pub fn from_io(
        operation: &'static str,
        name: impl Into<String>,
        offset: u64,
        bytes: usize,
        source: io::Error,
    ) -> Self {
        let name = name.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { name, offset, bytes }
            }
            io::ErrorKind::NotFound => Self::Missing { name },
            _ => Self::Io { operation, name, offset, source },
        }
    }
}

impl Span {
    /// First byte after the span.
    pub fn end(self) -> u64 {
        self.offset + self.bytes as u64
    }

    /// # Panics
    /// When the span is empty, is not made of whole blocks, or lies beyond the longest device. Each is a bug
    /// in the caller.
    pub(crate) fn assert_whole_blocks(self) {
        assert!(
            self.bytes > 0
                && (self.offset | self.bytes as u64).is_multiple_of(BLOCK_BYTES as u64)
                && self.offset < DEVICE_BYTES_MAX
                && self.bytes as u64 <= DEVICE_BYTES_MAX,
            "{self:?} is not made of whole blocks below {DEVICE_BYTES_MAX}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "not made of whole blocks below")]
    fn a_span_whose_end_wraps_around_is_refused() {
        Span { offset: 2 * BLOCK_BYTES as u64, bytes: usize::MAX - BLOCK_BYTES + 1 }.assert_whole_blocks();
    }
}
