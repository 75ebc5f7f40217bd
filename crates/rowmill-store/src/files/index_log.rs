//! The log of index changes between two checkpoints, and the switch from one to the next at a cut.

use std::sync::Arc;

use rowmill_io::Volume;
use rowmill_rows::RowKey;
use rowmill_sync::{Mutex, Rank, ranks};

use super::DeltaFile;
use super::delta::DeltaWriter;
use super::error::FileError;
use crate::error::StoreError;

/// Where index changes are written. Changes are infallible to record: a write that fails is kept and
/// surfaces at the checkpoint that needs it.
#[derive(Debug)]
pub(crate) struct IndexLog {
    volume: Arc<dyn Volume>,
    current: Mutex<Option<DeltaWriter>, ranks::IndexLogCurrent>,
    /// Takes the rows frozen by the cut that is being saved.
    frozen: Mutex<Option<DeltaWriter>, ranks::IndexLogFrozen>,
    error: Mutex<Option<StoreError>, ranks::IndexLogError>,
}

impl IndexLog {
    /// A log that writes from epoch `epoch` on; a read-only store writes none.
    pub(crate) fn new(volume: Arc<dyn Volume>, epoch: Option<u64>) -> Result<Self, StoreError> {
        let log =
            Self { volume, current: Mutex::new(None), frozen: Mutex::new(None), error: Mutex::new(None) };
        if let Some(epoch) = epoch {
            *log.current.lock() = Some(log.begin(epoch)?);
        }
        Ok(log)
    }

    fn begin(&self, epoch: u64) -> Result<DeltaWriter, StoreError> {
        Ok(DeltaWriter::create(&*self.volume, epoch)?)
    }

    /// A row is now at `row` on the device, or gone.
    pub(crate) fn record(&self, key: RowKey, row: Option<u32>) {
        self.write(&self.current, |writer| writer.record(key, row));
    }

    /// A row that did not change is now at `row` on the device.
    pub(crate) fn record_moved(&self, key: RowKey, row: u32) {
        self.write(&self.current, |writer| writer.record_moved(key, row));
    }

    /// As [`IndexLog::record`], for a row that belongs to the cut being saved.
    pub(crate) fn record_frozen(&self, key: RowKey, row: Option<u32>) {
        self.write(&self.frozen, |writer| writer.record(key, row));
    }

    fn write<R: Rank>(
        &self,
        writer: &Mutex<Option<DeltaWriter>, R>,
        record: impl FnOnce(&mut DeltaWriter) -> Result<(), FileError>,
    ) {
        let result = match writer.lock().as_mut() {
            Some(writer) => record(writer).map_err(StoreError::from),
            None => Err(StoreError::Closed),
        };
        if let Err(error) = result {
            self.error.lock().get_or_insert(error);
        }
    }

    /// The cut: changes up to now belong to the checkpoint, later ones to the next, which is `epoch`.
    pub(crate) fn cut(&self, epoch: u64) -> Result<(), StoreError> {
        if self.current.lock().is_none() {
            return Err(StoreError::Closed);
        }
        let next = self.begin(epoch)?;
        let previous = self.current.lock().replace(next);
        *self.frozen.lock() = previous;
        Ok(())
    }

    /// Write no more: what is buffered goes to the files now, and not when the store is dropped, when the volume may
    /// be another's.
    pub(crate) fn close(&self) {
        *self.current.lock() = None;
        *self.frozen.lock() = None;
    }

    /// Close the file of the cut; its name and checksum for the manifest.
    pub(crate) fn finish_cut(&self) -> Result<DeltaFile, StoreError> {
        if let Some(error) = self.error.lock().take() {
            return Err(error);
        }
        let writer = self.frozen.lock().take().ok_or(StoreError::Closed)?;
        Ok(writer.finish()?)
    }

    /// Bytes of buffers.
    pub(crate) fn bytes() -> usize {
        2 * DeltaWriter::BUFFER_BYTES
    }
}
