//! Namespaces of blocks: reads, writes and flushes on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rowmill_io::{BLOCK_BYTES, Device, DeviceError, Span};
use rowmill_nvme::{BlockRange, Status};

/// A block of a namespace has 2 to this power bytes: as many as a block of a device.
pub const BLOCK_SHIFT: u8 = BLOCK_BYTES.trailing_zeros() as u8;

/// The blocks of a namespace, on a device. Blocks that were never written read as zeros.
#[derive(Debug)]
pub struct Blocks {
    device: Arc<dyn Device>,
    /// A sync failed, so writes since the one before it may be lost: nothing is written any more.
    is_poisoned: AtomicBool,
}

impl Blocks {
    /// Blocks on a device, which grows as they are written.
    pub fn new(device: Arc<dyn Device>) -> Blocks {
        Blocks { device, is_poisoned: AtomicBool::new(false) }
    }

    /// The content of blocks.
    ///
    /// # Errors
    ///
    /// The status for the host.
    pub fn read(&self, blocks: BlockRange) -> Result<Vec<u8>, Status> {
        let mut content = vec![0; bytes(blocks.count)];
        // The rest was never written.
        if let Some(span) = self.on_device(blocks) {
            let mut result = Ok(());
            self.device.read(&[span], &mut |_, read| match read {
                Ok(read) => content[..read.len()].copy_from_slice(read),
                Err(error) => result = Err(error),
            });
            result.map_err(|error| failed(&error, Status::UNRECOVERED_READ_ERROR))?;
        }
        Ok(content)
    }

    /// Write whole blocks from block `first` on. With `is_durable`, they are durable afterwards.
    ///
    /// # Errors
    ///
    /// The status for the host.
    pub fn write(&self, first: u64, content: &[u8], is_durable: bool) -> Result<(), Status> {
        self.check_poison()?;
        let written = self.device.write(first << BLOCK_SHIFT, content);
        written.map_err(|error| failed(&error, Status::WRITE_FAULT))?;
        if is_durable { self.flush() } else { Ok(()) }
    }

    /// Make all written blocks durable.
    ///
    /// # Errors
    ///
    /// The status for the host.
    pub fn flush(&self) -> Result<(), Status> {
        self.check_poison()?;
        self.device.sync().map_err(|error| {
            self.is_poisoned.store(true, Ordering::Release);
            failed(&error, Status::WRITE_FAULT)
        })
    }

    /// Free the space of blocks. They read as zeros afterwards, as discarded parts of files do.
    ///
    /// # Errors
    ///
    /// The status for the host.
    pub fn deallocate(&self, ranges: &[BlockRange]) -> Result<(), Status> {
        self.check_poison()?;
        for span in ranges.iter().filter_map(|&range| self.on_device(range)) {
            self.device.discard(span).map_err(|error| failed(&error, Status::WRITE_FAULT))?;
        }
        Ok(())
    }

    /// The part of the blocks that the device has; none, if they are all beyond its end.
    fn on_device(&self, blocks: BlockRange) -> Option<Span> {
        let offset = blocks.first << BLOCK_SHIFT;
        let end = self.device.bytes().min(offset + (blocks.count << BLOCK_SHIFT));
        let span = Span { offset, bytes: usize::try_from(end.checked_sub(offset)?).ok()? };
        (span.bytes > 0).then_some(span)
    }

    fn check_poison(&self) -> Result<(), Status> {
        if self.is_poisoned.load(Ordering::Acquire) { Err(Status::WRITE_FAULT) } else { Ok(()) }
    }
}

fn bytes(blocks: u64) -> usize {
    usize::try_from(blocks << BLOCK_SHIFT).expect("a command has at most 512 KiB")
}

fn failed(error: &DeviceError, other: Status) -> Status {
    let status = if matches!(error, DeviceError::Full { .. }) { Status::CAPACITY_EXCEEDED } else { other };
    tracing::error!(%error, %status, "a command on blocks failed");
    status
}
