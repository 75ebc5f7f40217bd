//! The block device behind everything the store keeps.

use std::fmt::Debug;
use std::io;

/// Unit of every read, write and checksum, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// No device is this long: an offset beyond is a mistake of its caller.
const DEVICE_BYTES_MAX: u64 = 1 << 60;

/// Whole consecutive blocks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte; a multiple of [`BLOCK_BYTES`].
    pub offset: u64,
    /// Length; a positive multiple of [`BLOCK_BYTES`].
    pub bytes: usize,
}

/// The bytes of one span, borrowed for the moment, or why there are none.
pub type ReadResult<'a> = Result<&'a [u8], DeviceError>;

/// Blocks that can be read in batches, written, and made durable.
///
/// A device knows nothing of rows or checksums: it may return stale, torn or foreign bytes, and its
/// caller must notice. Writes are durable only after [`Device::sync`] has returned `Ok`; after a sync
/// has failed nothing is known about any write since the last good one.
pub trait Device: Send + Sync + Debug {
    /// Read every span, in any order, and hand each one to `deliver(position in spans, result)` exactly
    /// once. The bytes are borrowed: copy what must outlive the call. At most a fixed number of reads
    /// is in flight, whatever the batch; neighbouring spans may be read as one.
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>));

    /// Write `blocks` (a multiple of [`BLOCK_BYTES`]) at `offset`, growing the device if needed.
    ///
    /// # Errors
    /// [`DeviceError::Full`] when there is no space, [`DeviceError::Io`] otherwise.
    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError>;

    /// Make every completed write durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; the caller must then stop trusting unsynced writes.
    fn sync(&self) -> Result<(), DeviceError>;

    /// Give the space of a span back; reading it afterwards yields zeros or an error.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; the space then stays taken, nothing else changes.
    fn discard(&self, span: Span) -> Result<(), DeviceError>;

    /// Current length in bytes.
    fn bytes(&self) -> u64;
}

/// What a device or volume could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No space left, or the file may not grow. Nothing the last checkpoint names was touched.
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
        /// What was tried.
        operation: &'static str,
        /// File or device.
        name: String,
        /// First byte concerned.
        offset: u64,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file does not exist.
    #[error("{name} does not exist")]
    Missing {
        /// File or device.
        name: String,
    },
    /// Another process holds the volume.
    #[error("{name} is in use by another process (pid {holder}); close it there or open read-only")]
    Locked {
        /// The volume.
        name: String,
        /// Process that holds it, 0 if unknown.
        holder: u32,
    },
}

impl DeviceError {
    /// The error for a failed call of the operating system on `bytes` bytes of `name` at `offset`.
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
    /// When the span is empty, not made of whole blocks, or absurdly far out: its caller computed it wrongly.
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
