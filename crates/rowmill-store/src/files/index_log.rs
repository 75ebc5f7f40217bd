//! The log of index changes between two checkpoints, switched at each cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rowmill_io::Volume;
use rowmill_rows::RowKey;
use rowmill_sync::{Mutex, Rank, ranks};

use super::DeltaFile;
use super::delta::DeltaWriter;
use super::error::FileError;
use super::frame::FileEntry;
use super::moves::{Move, MovesWriter};
use crate::error::StoreError;

/// Writes index changes. Recording a change returns no error: a failed write is kept and reported by the
/// checkpoint that needs it.
#[derive(Debug)]
pub(crate) struct IndexLog {
    volume: Arc<dyn Volume>,
    current: Mutex<Option<DeltaWriter>, ranks::IndexLogCurrent>,
    /// Records the rows frozen by the cut that is being saved.
    frozen: Mutex<Option<DeltaWriter>, ranks::IndexLogFrozen>,
    /// Calls of [`IndexLog::record`] since the last cut.
    recorded: AtomicU64,
    moves: Mutex<Moves, ranks::IndexLogMoves>,
    error: Mutex<Option<StoreError>, ranks::IndexLogError>,
}

/// Moved rows of versions.
#[derive(Debug)]
struct Moves {
    /// The checkpoint that makes the next moves durable.
    epoch: u64,
    /// Created by the first move after a cut.
    current: Option<MovesWriter>,
    /// Moves before the cut that is being saved.
    frozen: Option<MovesWriter>,
}

impl IndexLog {
    /// A log that writes from `epoch` on; `None` for a read-only store, which writes none.
    pub(crate) fn new(volume: Arc<dyn Volume>, epoch: Option<u64>) -> Result<Self, StoreError> {
        let moves = Moves { epoch: epoch.unwrap_or(0), current: None, frozen: None };
        let log = Self {
            volume,
            current: Mutex::new(None),
            frozen: Mutex::new(None),
            recorded: AtomicU64::new(0),
            moves: Mutex::new(moves),
            error: Mutex::new(None),
        };
        if let Some(epoch) = epoch {
            *log.current.lock() = Some(log.begin(epoch)?);
        }
        Ok(log)
    }

    fn begin(&self, epoch: u64) -> Result<DeltaWriter, StoreError> {
        Ok(DeltaWriter::create(&*self.volume, epoch)?)
    }

    /// Record that a row is now at `row` on the device, or deleted.
    pub(crate) fn record(&self, key: RowKey, row: Option<u32>) {
        self.recorded.fetch_add(1, Relaxed);
        self.write(&self.current, |writer| writer.record(key, row));
    }

    /// Number of changed rows that were written to the device, and of deletes, since the last cut.
    pub(crate) fn recorded(&self) -> u64 {
        self.recorded.load(Relaxed)
    }

    /// Record that an unchanged row has moved to `row` on the device.
    pub(crate) fn record_moved(&self, key: RowKey, row: u32) {
        self.write(&self.current, |writer| writer.record_moved(key, row));
    }

    /// As [`IndexLog::record`], for a row that belongs to the cut being saved.
    pub(crate) fn record_frozen(&self, key: RowKey, row: Option<u32>) {
        self.write(&self.frozen, |writer| writer.record(key, row));
    }

    /// Record that a row which versions name has moved.
    pub(crate) fn record_move(&self, moved: Move) {
        let mut moves = self.moves.lock();
        let Moves { epoch, current, .. } = &mut *moves;
        let result = match current {
            Some(writer) => writer.record(moved),
            None => MovesWriter::create(&*self.volume, *epoch).and_then(|mut writer| {
                writer.record(moved)?;
                *current = Some(writer);
                Ok(())
            }),
        };
        if let Err(error) = result {
            self.error.lock().get_or_insert(error.into());
        }
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

    /// The cut: changes so far belong to the checkpoint, later ones to the next checkpoint, `epoch`.
    pub(crate) fn cut(&self, epoch: u64) -> Result<(), StoreError> {
        if self.current.lock().is_none() {
            return Err(StoreError::Closed);
        }
        let next = self.begin(epoch)?;
        let previous = self.current.lock().replace(next);
        *self.frozen.lock() = previous;
        self.recorded.store(0, Relaxed);
        let mut moves = self.moves.lock();
        moves.epoch = epoch;
        moves.frozen = moves.current.take();
        Ok(())
    }

    /// Stop writing. Buffers are written now and not when the store is dropped, because another process may
    /// own the volume by then.
    pub(crate) fn close(&self) {
        *self.current.lock() = None;
        *self.frozen.lock() = None;
        let mut moves = self.moves.lock();
        (moves.current, moves.frozen) = (None, None);
    }

    /// Finish the file of the cut. Returns its entry for the manifest.
    pub(crate) fn finish_cut(&self) -> Result<DeltaFile, StoreError> {
        if let Some(error) = self.error.lock().take() {
            return Err(error);
        }
        let writer = self.frozen.lock().take().ok_or(StoreError::Closed)?;
        Ok(writer.finish()?)
    }

    /// Finish the file of rows of versions that moved before the cut, if any did.
    pub(crate) fn finish_moves(&self) -> Result<Option<FileEntry>, StoreError> {
        let frozen = self.moves.lock().frozen.take();
        Ok(frozen.map(MovesWriter::finish).transpose()?)
    }

    /// Bytes of the buffers.
    pub(crate) fn bytes() -> usize {
        2 * DeltaWriter::BUFFER_BYTES
    }
}
