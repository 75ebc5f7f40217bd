//! Moves: rows of versions that cleaning moved between two checkpoints.
//!
//! A record is 24 bytes: id (8), category (4), group (4), old row number (4), new row number (4). It applies to
//! every version, and every index made from one, that names the old row number for this key. Records apply in
//! order, since the places of moved rows are reused. After a rollback two versions may have tables of one
//! category in different groups, so the group is part of the record.

use rowmill_io::Volume;
use rowmill_rows::{Category, RowKey};

use super::error::FileError;
use super::frame::{FileEntry, FrameReader, FrameWriter};
use super::name;

const MAGIC: [u8; 8] = *b"rowmmove";
const RECORD_BYTES: usize = 24;

/// A row that moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) key: RowKey,
    pub(crate) group: u32,
    pub(crate) old: u32,
    pub(crate) new: u32,
}

/// Records moves as they happen.
#[derive(Debug)]
pub(crate) struct MovesWriter {
    frames: FrameWriter,
}

impl MovesWriter {
    /// Begin the moves that checkpoint `epoch` makes durable.
    pub(crate) fn create(volume: &dyn Volume, epoch: u64) -> Result<Self, FileError> {
        Ok(Self { frames: FrameWriter::create(volume, name::moves(epoch), MAGIC)? })
    }

    /// Record a move; buffered.
    ///
    /// # Errors
    /// When the full buffer could not be written. Every later call then fails.
    pub(crate) fn record(&mut self, moved: Move) -> Result<(), FileError> {
        if self.frames.room() < RECORD_BYTES {
            self.frames.end_frame()?;
        }
        self.frames.put(&moved.key.id.to_le_bytes());
        for word in [moved.key.category.0, moved.group, moved.old, moved.new] {
            self.frames.put(&word.to_le_bytes());
        }
        Ok(())
    }

    /// Make all moves durable. Returns the file's entry for the manifest.
    ///
    /// # Errors
    /// When this or any earlier write failed.
    pub(crate) fn finish(self) -> Result<FileEntry, FileError> {
        self.frames.finish()
    }
}

/// Pass every move in a file to `visit`, in order.
///
/// # Errors
/// The first error of `visit`, or [`FileError`] when the file is damaged.
pub(crate) fn for_each_move<E: From<FileError>>(
    volume: &dyn Volume,
    file: &FileEntry,
    mut visit: impl FnMut(Move) -> Result<(), E>,
) -> Result<(), E> {
    let mut frames = FrameReader::open(volume, file, MAGIC)?;
    while let Some(payload) = frames.next()? {
        let (records, rest) = payload.as_chunks::<RECORD_BYTES>();
        if !rest.is_empty() {
            return Err(frames.corrupt("a frame does not hold whole records").into());
        }
        for record in records {
            let word = |at: usize| u32::from_le_bytes(*record[at..].first_chunk().expect("4 bytes"));
            let id = u64::from_le_bytes(*record.first_chunk().expect("8 bytes"));
            let key = RowKey { category: Category(word(8)), id };
            visit(Move { key, group: word(12), old: word(16), new: word(20) })?;
        }
    }
    Ok(())
}
