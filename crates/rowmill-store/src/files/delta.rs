//! Deltas: index changes between two checkpoints.
//!
//! A record is 16 bytes: id (8), category (4), row number or `u32::MAX` for a deleted row (4). Bit 31 of the
//! row number says that the row only moved and its bytes are unchanged: readers of changes skip such rows.
//! Later records of a key replace earlier ones. A frame holds up to 4096 records.

use rowmill_index::Location;
use rowmill_io::Volume;
use rowmill_rows::{Category, RowKey};

use super::error::FileError;
use super::frame::{FileEntry, FrameReader, FrameWriter, PAYLOAD_BYTES_MAX};
use super::name;

const MAGIC: [u8; 8] = *b"rowmdelt";
const RECORD_BYTES: usize = 16;
const DELETED: u32 = u32::MAX;
/// Bit of the row number that marks a row as only moved.
const MOVED: u32 = 1 << 31;

const _: () = assert!(PAYLOAD_BYTES_MAX.is_multiple_of(RECORD_BYTES));

/// Records index changes as they happen.
#[derive(Debug)]
pub(crate) struct DeltaWriter {
    frames: FrameWriter,
}

impl DeltaWriter {
    /// Bytes of memory per writer.
    pub(crate) const BUFFER_BYTES: usize = FrameWriter::BUFFER_BYTES;

    /// Begin the delta of checkpoint `epoch`.
    pub(crate) fn create(volume: &dyn Volume, epoch: u64) -> Result<Self, FileError> {
        Ok(Self { frames: FrameWriter::create(volume, name::delta(epoch), MAGIC)? })
    }

    /// Record that the row of `key` is now at `row` on the device, or deleted. Buffered: nothing is durable
    /// before [`DeltaWriter::finish`].
    ///
    /// # Errors
    /// When the buffer was full and could not be written. The change is then lost, and every later call
    /// fails.
    pub(crate) fn record(&mut self, key: RowKey, row: Option<u32>) -> Result<(), FileError> {
        debug_assert!(row.is_none_or(|row| row <= Location::ROW_MAX));
        self.put(key, row.unwrap_or(DELETED))
    }

    /// Record that the row of `key` has moved to `row` on the device with unchanged bytes.
    ///
    /// # Errors
    /// As [`DeltaWriter::record`].
    pub(crate) fn record_moved(&mut self, key: RowKey, row: u32) -> Result<(), FileError> {
        debug_assert!(row <= Location::ROW_MAX);
        // The last row number has no moved form, because that would read as deleted: it counts as changed.
        self.put(key, if row == Location::ROW_MAX { row } else { row | MOVED })
    }

    fn put(&mut self, key: RowKey, row: u32) -> Result<(), FileError> {
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(&key.id.to_le_bytes());
        record[8..12].copy_from_slice(&key.category.0.to_le_bytes());
        record[12..].copy_from_slice(&row.to_le_bytes());
        self.frames.put(&record);
        if self.frames.room() == 0 { self.frames.end_frame() } else { Ok(()) }
    }

    /// Make all changes durable. Returns the file's entry for the manifest.
    ///
    /// # Errors
    /// When this or any earlier write failed.
    pub(crate) fn finish(self) -> Result<FileEntry, FileError> {
        self.frames.finish()
    }
}

/// Reads index changes.
pub(crate) struct DeltaReader {
    frames: FrameReader,
}

impl DeltaReader {
    /// Open a file that the manifest names.
    pub(crate) fn open(volume: &dyn Volume, file: &FileEntry) -> Result<Self, FileError> {
        Ok(Self { frames: FrameReader::open(volume, file, MAGIC)? })
    }

    /// Pass every change to `change(key, row)`, in the order of recording.
    ///
    /// # Errors
    /// The first error of `change`, or [`FileError`] when the file is damaged. Changes passed before that are
    /// correct but incomplete.
    pub(crate) fn for_each<E: From<FileError>>(
        self,
        mut change: impl FnMut(RowKey, Option<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.for_each_record(|key, row, _| change(key, row))
    }

    /// As [`DeltaReader::for_each`], and passes whether the row only moved.
    ///
    /// # Errors
    /// As [`DeltaReader::for_each`].
    pub(crate) fn for_each_record<E: From<FileError>>(
        mut self,
        mut change: impl FnMut(RowKey, Option<u32>, bool) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(payload) = self.frames.next()? {
            let (records, rest) = payload.as_chunks::<RECORD_BYTES>();
            if !rest.is_empty() {
                return Err(self.frames.corrupt("a frame does not hold whole records").into());
            }
            for record in records {
                let (id, rest) = record.split_first_chunk::<8>().expect("16 bytes");
                let (category, row) = rest.split_first_chunk::<4>().expect("8 bytes");
                let row = u32::from_le_bytes(row.try_into().expect("4 bytes"));
                let key =
                    RowKey { category: Category(u32::from_le_bytes(*category)), id: u64::from_le_bytes(*id) };
                if row == DELETED {
                    change(key, None, false)?;
                } else {
                    change(key, Some(row & !MOVED), row & MOVED != 0)?;
                }
            }
        }
        Ok(())
    }
}
