//! A device that is a file of a real file system, or a whole disk.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::read_plan::SPANS_MAX;
use crate::registered_files::Presence;
use crate::ring::{Deliver, Source};
use crate::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceError, IoChoice, ReadResult, Span, pread, thread_ring,
};

/// Size of the bounce buffer for writes from unaligned memory, in bytes: large enough for the device's full
/// sequential speed.
pub(crate) const BOUNCE_BYTES: usize = 256 * 1024;

/// Most bytes of a file that are discarded at once. The file system locks the file meanwhile, so reads wait: on ext4,
/// 100 ms for 338 MiB.
const DISCARD_BYTES: usize = 4 << 20;

/// A file that bypasses the page cache where the file system allows it.
#[derive(Debug)]
pub(crate) struct FileDevice {
    presence: Presence,
    file: File,
    name: String,
    choice: IoChoice,
    /// Opened with `O_DIRECT`. Otherwise, pages are dropped from the cache after use.
    direct: bool,
    /// The bytes of a disk.
    disk_bytes: Option<u64>,
}

/// A disk, or a part of one: a block device such as `/dev/sdb`. It has a fixed length, and holds what was written to it
/// before. It is opened for this process alone, so it must not be mounted.
///
/// # Errors
/// When there is no such device, another program uses it, or it has less than one block.
pub fn open_disk(path: &Path, choice: IoChoice) -> Result<Arc<dyn Device>, DeviceError> {
    let name = path.display().to_string();
    let failed = |error| DeviceError::from_io("open", name.as_str(), 0, 0, error);
    let open = |flags: i32| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    let kind = path.metadata().map_err(failed)?.file_type();
    if !kind.is_block_device() {
        let reason = "it is no block device: name one, such as /dev/sdb";
        return Err(failed(io::Error::new(ErrorKind::InvalidInput, reason)));
    }
    // Of block devices, O_EXCL alone says that nothing else may use them.
    let mut file = open(libc::O_EXCL | libc::O_DIRECT).map_err(failed)?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(failed)? / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    if bytes == 0 {
        let reason = format!("it has less than {BLOCK_BYTES} bytes");
        return Err(failed(io::Error::new(ErrorKind::InvalidInput, reason)));
    }
    let presence = Presence::new();
    Ok(Arc::new(FileDevice { presence, file, name, choice, direct: true, disk_bytes: Some(bytes) }))
}

impl FileDevice {
    /// Open `path`; create it if missing and `writable`. `direct` asks for `O_DIRECT`. If the file system
    /// refuses it, the device is opened without it and `is_direct()` is false.
    pub(crate) fn open(
        path: &Path,
        writable: bool,
        direct: bool,
        choice: IoChoice,
    ) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let open = |flags: i32| {
            OpenOptions::new()
                .read(true)
                .write(writable)
                .create(writable)
                .truncate(false)
                .custom_flags(flags)
                .open(path)
        };
        let opened = if direct {
            match open(libc::O_DIRECT) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0).map(|file| (file, false)),
                other => other.map(|file| (file, true)),
            }
        } else {
            open(0).map(|file| (file, false))
        };
        let (file, direct) =
            opened.map_err(|error| DeviceError::from_io("open", name.as_str(), 0, 0, error))?;
        Ok(Self { file, name, presence: Presence::new(), choice, direct, disk_bytes: None })
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    fn error(&self, operation: &'static str, offset: u64, bytes: usize, source: io::Error) -> DeviceError {
        DeviceError::from_io(operation, self.name.as_str(), offset, bytes, source)
    }

    fn read_some(&self, spans: &[Span], deliver: Deliver<'_>) {
        // Buffered reads block the thread inside the ring; pread does the same at less cost.
        if self.direct && self.choice == IoChoice::Auto {
            let source = Source { file: &self.file, presence: &self.presence, name: &self.name };
            if thread_ring::read(&source, spans, deliver) {
                return;
            }
        }
        pread::read(&self.file, &self.name, spans, deliver);
        if !self.direct {
            for span in spans {
                self.drop_cache(span.offset, span.bytes as u64);
            }
        }
    }

    fn write_aligned(&self, mut offset: u64, mut blocks: &[u8]) -> Result<(), DeviceError> {
        while !blocks.is_empty() {
            let written = match self.file.write_at(blocks, offset) {
                // A direct write must continue at a block boundary, so a partly written last block is written
                // again.
                Ok(written) => written / BLOCK_BYTES * BLOCK_BYTES,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.error("write", offset, blocks.len(), error)),
            };
            if written == 0 {
                let stuck = io::Error::new(ErrorKind::WriteZero, "less than one block was written");
                return Err(self.error("write", offset, blocks.len(), stuck));
            }
            blocks = &blocks[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Change a span of the file to zeros, in this way.
    fn allocate(&self, mode: i32, span: Span) -> io::Result<()> {
        // SAFETY: fallocate accesses no memory of this process. If the descriptor is not open for writing,
        // the call fails.
        let result = unsafe {
            libc::fallocate(
                self.file.as_raw_fd(),
                mode | libc::FALLOC_FL_KEEP_SIZE,
                span.offset as i64,
                span.bytes as i64,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn discard_part(&self, span: Span) -> Result<(), DeviceError> {
        let mut result = self.allocate(libc::FALLOC_FL_PUNCH_HOLE, span);
        let unsupported = |error: &io::Error| error.raw_os_error() == Some(libc::EOPNOTSUPP);
        if self.disk_bytes.is_some() && result.as_ref().is_err_and(unsupported) {
            // The disk frees nothing. The kernel writes zeros.
            result = self.allocate(libc::FALLOC_FL_ZERO_RANGE, span);
        }
        result.map_err(|error| self.error("discard", span.offset, span.bytes, error))
    }

    /// Drop the cached pages of the span. If `bytes` is 0, drop all pages from `offset` on.
    fn drop_cache(&self, offset: u64, bytes: u64) {
        // SAFETY: posix_fadvise accesses no memory of this process, and the descriptor is open. The call is
        // advisory, so its result is ignored.
        unsafe {
            libc::posix_fadvise(
                self.file.as_raw_fd(),
                offset as i64,
                bytes as i64,
                libc::POSIX_FADV_DONTNEED,
            );
        }
    }
}

impl Device for FileDevice {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
        for (turn, some) in spans.chunks(SPANS_MAX).enumerate() {
            self.read_some(some, &mut |position, result| deliver(turn * SPANS_MAX + position, result));
        }
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        if blocks.is_empty() {
            return Ok(());
        }
        Span { offset, bytes: blocks.len() }.assert_whole_blocks();
        if !self.direct || AlignedBuffer::is_aligned(blocks) {
            return self.write_aligned(offset, blocks);
        }
        let mut bounce = AlignedBuffer::new(blocks.len().min(BOUNCE_BYTES));
        for (position, part) in blocks.chunks(BOUNCE_BYTES).enumerate() {
            bounce[..part.len()].copy_from_slice(part);
            self.write_aligned(offset + (position * BOUNCE_BYTES) as u64, &bounce[..part.len()])?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.file.sync_data().map_err(|error| self.error("sync", 0, 0, error))?;
        if !self.direct {
            self.drop_cache(0, 0);
        }
        Ok(())
    }

    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        span.assert_whole_blocks();
        let at_once = if self.disk_bytes.is_some() { span.bytes.max(1) } else { DISCARD_BYTES };
        for start in (0..span.bytes).step_by(at_once) {
            let bytes = at_once.min(span.bytes - start);
            let begun = Instant::now();
            self.discard_part(Span { offset: span.offset + start as u64, bytes })?;
            // Waiting reads get the lock before the next part.
            if start + bytes < span.bytes {
                std::thread::sleep(begun.elapsed());
            }
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        // fstat of an open local file cannot fail. If a network file system lost the file, there is nothing
        // to read.
        self.disk_bytes.unwrap_or_else(|| self.file.metadata().map_or(0, |metadata| metadata.len()))
    }
}
