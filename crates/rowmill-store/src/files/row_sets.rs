//! Which row numbers of every log a checkpoint names, one bit each.
//!
//! A frame holds words of one group: group (4), number of the first word (4), then the words (8 each). Bit `b`
//! of word `w` is row `64 w + b`. Words of zero are left out.

use rowmill_io::Volume;
use rowmill_log::RowSet;

use super::error::FileError;
use super::frame::{FileEntry, FrameReader, FrameWriter};
use super::moves::for_each_move;
use super::name::{self, epoch_of};

const MAGIC: [u8; 8] = *b"rowmrows";
const HEADER_BYTES: usize = 8;
/// Words of row numbers, which have 31 bits.
const WORDS_MAX: u32 = 1 << 25;

/// Write the rows of checkpoint `epoch`, by group.
///
/// # Errors
/// When writing fails.
pub(crate) fn save_row_sets(
    volume: &dyn Volume,
    epoch: u64,
    groups: &[RowSet],
) -> Result<FileEntry, FileError> {
    let mut frames = FrameWriter::create(volume, name::rows(epoch), MAGIC)?;
    for (group, rows) in (0u32..).zip(groups) {
        let mut next = None;
        for (at, bits) in rows.words() {
            if next != Some(at) || frames.room() < 8 {
                frames.end_frame()?;
                frames.put(&group.to_le_bytes());
                frames.put(&at.to_le_bytes());
            }
            frames.put(&bits.to_le_bytes());
            next = Some(at + 1);
        }
        frames.end_frame()?;
    }
    frames.finish()
}

/// The rows of a checkpoint by group, after the moves in those of `moves` that are later than the file.
///
/// # Errors
/// When a file is damaged.
pub(crate) fn load_row_sets(
    volume: &dyn Volume,
    file: &FileEntry,
    groups: usize,
    moves: &[FileEntry],
) -> Result<Vec<RowSet>, FileError> {
    let sets: Vec<RowSet> = (0..groups).map(|_| RowSet::default()).collect();
    let mut frames = FrameReader::open(volume, file, MAGIC)?;
    while let Some(payload) = frames.next()? {
        let (words, rest) = payload.as_chunks::<8>();
        let Some((header, words)) = words.split_first().filter(|_| rest.is_empty()) else {
            return Err(frames.corrupt("a frame does not hold whole words"));
        };
        let word = |at: usize| u32::from_le_bytes(*header[at..].first_chunk().expect("4 bytes"));
        let (group, first) = (word(0) as usize, word(4));
        if group >= groups || u64::from(first) + words.len() as u64 > u64::from(WORDS_MAX) {
            return Err(frames.corrupt(format!("it has words from {first} of group {group}")));
        }
        (first..).zip(words).for_each(|(at, bits)| sets[group].insert_word(at, u64::from_le_bytes(*bits)));
    }
    for moved in moves.iter().filter(|moved| epoch_of(&moved.name) > epoch_of(&file.name)) {
        for_each_move(volume, moved, |moved| {
            if let Some(rows) = sets.get(moved.group as usize)
                && rows.remove(moved.old)
            {
                rows.insert(moved.new);
            }
            Ok::<(), FileError>(())
        })?;
    }
    Ok(sets)
}

const _: () = assert!(HEADER_BYTES == size_of::<u64>());
