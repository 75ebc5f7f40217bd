//! Snapshots: the whole index at a checkpoint, with the row number of every row.
//!
//! A frame holds entries of one category: category (4), count (4), then `count` ids (8 each), then as many
//! row numbers (4 each). These columns decode at memory speed.

use rowmill_index::Location;
use rowmill_io::Volume;
use rowmill_rows::Category;

use super::error::FileError;
use super::frame::{FileEntry, FrameReader, FrameWriter, PAYLOAD_BYTES_MAX};
use super::name;

const MAGIC: [u8; 8] = *b"rowmsnap";
const HEADER_BYTES: usize = 8;
const ENTRY_BYTES: usize = 12;
/// Entries per frame: 48 KiB, small for any budget, and large enough that the 8-byte header costs nothing.
const ENTRIES_MAX: usize = 4096;

const _: () = assert!(HEADER_BYTES + ENTRIES_MAX * ENTRY_BYTES <= PAYLOAD_BYTES_MAX);

/// Writes the index of a checkpoint.
#[derive(Debug)]
pub(crate) struct SnapshotWriter {
    frames: FrameWriter,
    category: Category,
    ids: Vec<u64>,
    rows: Vec<u32>,
}

impl SnapshotWriter {
    /// Begin the snapshot of checkpoint `epoch`.
    pub(crate) fn create(volume: &dyn Volume, epoch: u64) -> Result<Self, FileError> {
        Ok(Self {
            frames: FrameWriter::create(volume, name::snapshot(epoch), MAGIC)?,
            category: Category(0),
            ids: Vec::with_capacity(ENTRIES_MAX),
            rows: Vec::with_capacity(ENTRIES_MAX),
        })
    }

    /// Add a row. Rows of one category should be added consecutively.
    ///
    /// # Errors
    /// When a full buffer could not be written. Every later call then fails.
    pub(crate) fn push(&mut self, category: Category, id: u64, row: u32) -> Result<(), FileError> {
        debug_assert!(row <= Location::ROW_MAX);
        if self.ids.len() == ENTRIES_MAX || category != self.category {
            self.end_frame()?;
            self.category = category;
        }
        self.ids.push(id);
        self.rows.push(row);
        Ok(())
    }

    /// Make the snapshot durable. Returns the file's entry for the manifest.
    ///
    /// # Errors
    /// When this or any earlier write failed.
    pub(crate) fn finish(mut self) -> Result<FileEntry, FileError> {
        self.end_frame()?;
        self.frames.finish()
    }

    fn end_frame(&mut self) -> Result<(), FileError> {
        if self.ids.is_empty() {
            return Ok(());
        }
        self.frames.put(&self.category.0.to_le_bytes());
        self.frames.put(&(self.ids.len() as u32).to_le_bytes());
        self.ids.drain(..).for_each(|id| self.frames.put(&id.to_le_bytes()));
        self.rows.drain(..).for_each(|row| self.frames.put(&row.to_le_bytes()));
        self.frames.end_frame()
    }
}

/// Reads a snapshot.
pub(crate) struct SnapshotReader {
    frames: FrameReader,
}

impl SnapshotReader {
    /// Open a file that the manifest names.
    pub(crate) fn open(volume: &dyn Volume, file: &FileEntry) -> Result<Self, FileError> {
        Ok(Self { frames: FrameReader::open(volume, file, MAGIC)? })
    }

    /// Pass the entries to `entries(category, ids, rows)`, some thousand at a time. `rows[i]` is the row
    /// number of `ids[i]`.
    ///
    /// # Errors
    /// The first error of `entries`, or [`FileError`] when the file is damaged. Entries passed before that
    /// are correct but incomplete.
    pub(crate) fn for_each_chunk<E: From<FileError>>(
        mut self,
        mut entries: impl FnMut(Category, &[u64], &[u32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut ids, mut rows) = (Vec::with_capacity(ENTRIES_MAX), Vec::with_capacity(ENTRIES_MAX));
        while let Some(payload) = self.frames.next()? {
            let Some(category) = decode(payload, &mut ids, &mut rows) else {
                return Err(self
                    .frames
                    .corrupt("a frame does not hold the announced number of entries")
                    .into());
            };
            if let Some(row) = rows.iter().find(|row| **row > Location::ROW_MAX) {
                return Err(self
                    .frames
                    .corrupt(format!("a row of {category:?} has number {row}, which is too large"))
                    .into());
            }
            entries(category, &ids, &rows)?;
        }
        Ok(())
    }
}

fn decode(payload: &[u8], ids: &mut Vec<u64>, rows: &mut Vec<u32>) -> Option<Category> {
    let (category, rest) = payload.split_first_chunk::<4>()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count) as usize;
    if rest.len() != count.checked_mul(ENTRY_BYTES)? {
        return None;
    }
    let (id_bytes, row_bytes) = rest.split_at(count * 8);
    ids.clear();
    ids.extend(id_bytes.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes)));
    rows.clear();
    rows.extend(row_bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)));
    Some(Category(u32::from_le_bytes(*category)))
}
