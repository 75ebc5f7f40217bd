//! The segment files of a feed. A file is named after its first sequence number and names the one that it
//! follows.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `rowmfeed` |
//! | 4 | format version |
//! | 4 | CRC32C of the 16 bytes behind |
//! | 8 | sequence number of the first frame |
//! | 8 | sequence number that it follows; all ones: none, a chain begins |

use std::io::{ErrorKind, Read};

use rowmill_io::{DeviceError, Volume};

use crate::error::StoreError;
use crate::files::FORMAT_VERSION;

const MAGIC: [u8; 8] = *b"rowmfeed";
const PREFIX: &str = "feed-";
/// Limit on sequence numbers.
const FIRST_MAX: u64 = 1 << 62;
/// Bytes before the first frame.
pub(super) const HEADER_BYTES: usize = 32;
/// The value of `follows` in the first segment of a chain.
pub(super) const NOTHING: u64 = u64::MAX;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) first: u64,
    pub(super) follows: u64,
}

/// A header, and the rest of the file.
pub(super) type OpenedSegment = (Segment, Box<dyn Read + Send>);

/// File name of the segment that begins with frame `first`.
pub(super) fn name(first: u64) -> String {
    format!("{PREFIX}{first:020}")
}

/// First sequence numbers of all segments, from their names, ascending.
pub(super) fn list(volume: &dyn Volume) -> Result<Vec<u64>, StoreError> {
    let number = |name: &String| name.strip_prefix(PREFIX)?.parse().ok().filter(|&first| first <= FIRST_MAX);
    let mut firsts: Vec<u64> = volume.list()?.iter().filter_map(number).collect();
    firsts.sort_unstable();
    Ok(firsts)
}

/// Remove all segments: they do not lead to the current rows.
///
/// # Errors
/// When the volume fails.
pub(crate) fn remove_all(volume: &dyn Volume) -> Result<(), StoreError> {
    for first in list(volume)? {
        volume.remove(&name(first))?;
    }
    Ok(())
}

pub(super) fn header(segment: Segment) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&segment.first.to_le_bytes());
    header[24..].copy_from_slice(&segment.follows.to_le_bytes());
    let crc = rowmill_io::crc32c(&header[16..]);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Open a segment. `None` when it was removed, or its header is invalid or not written yet.
pub(super) fn open(volume: &dyn Volume, first: u64) -> Result<Option<OpenedSegment>, StoreError> {
    let mut file = match volume.open(&name(first)) {
        Ok(file) => file,
        Err(DeviceError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = [0; HEADER_BYTES];
    match file.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => {
            return Err(
                DeviceError::from_io("read", volume.path(&name(first)), 0, HEADER_BYTES, error).into()
            );
        }
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let segment = Segment { first: word(16), follows: word(24) };
    let is_ours = bytes == header(segment) && segment.first == first;
    Ok(is_ours.then_some((segment, file)))
}
