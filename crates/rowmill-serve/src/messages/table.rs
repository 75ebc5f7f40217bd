//! The table of a message's tensors: one entry each, in order.

use std::collections::HashSet;

use super::tensor::{RANK_MAX, bytes_of};
use super::{ALIGNMENT, DType, Header, Limits, MessageError, SMALL_BYTES, TensorName};

/// Bytes of an entry before its dimensions and name.
const ENTRY_BYTES: usize = 24;
/// Bytes of an entry at most: all dimensions, and a name of 255 bytes padded to a multiple of 8.
pub(super) const ENTRY_BYTES_MAX: usize = ENTRY_BYTES + RANK_MAX * 8 + 256;
/// What stands in place of a number where a tensor has a name.
const NAMED: u16 = u16::MAX;

/// Where the payload of a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Place {
    /// Behind the table, in the first write.
    Inline = 0,
    /// Behind the first write, on the connection.
    Stream = 1,
    /// In the sender's arena, which the receiver has mapped.
    Shared = 2,
}

/// One tensor of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: TensorName,
    pub(super) dtype: DType,
    pub(super) shape: Box<[u64]>,
    pub(super) place: Place,
    /// From the begin of the inline payloads, of the payloads on the connection, or of the sender's arena.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) crc: u32,
}

/// Append an entry.
pub(super) fn encode_entry(table: &mut Vec<u8>, entry: &Entry) {
    let (number, text) = match &entry.name {
        TensorName::Number(number) => (*number, ""),
        TensorName::Text(text) => (NAMED, &**text),
    };
    table.extend_from_slice(&number.to_le_bytes());
    table.extend_from_slice(&[
        entry.dtype as u8,
        entry.shape.len() as u8,
        entry.place as u8,
        text.len() as u8,
        0,
        0,
    ]);
    table.extend_from_slice(&entry.offset.to_le_bytes());
    table.extend_from_slice(&entry.crc.to_le_bytes());
    table.extend_from_slice(&[0; 4]);
    for size in &entry.shape {
        table.extend_from_slice(&size.to_le_bytes());
    }
    table.extend_from_slice(text.as_bytes());
    table.resize(table.len().next_multiple_of(8), 0);
}

/// Read the table of a message with the header `header`, whose checksum is right. The payloads may be larger than a
/// reader takes.
///
/// Offsets inside the message have one right value, so every tensor is inside the message and none overlaps another.
pub(super) fn decode_table(table: &[u8], header: &Header) -> Result<Vec<Entry>, MessageError> {
    let misfit = || MessageError::Table { tensors: header.tensors, table_bytes: header.table_bytes };
    let mut rest = table;
    let mut entries: Vec<Entry> = Vec::with_capacity(header.tensors.into());
    let (mut inline, mut stream) = (0_u64, 0_u64);
    for number in 0..header.tensors {
        let entry = decode_entry(&mut rest, number).ok_or_else(misfit)??;
        let expected = match entry.place {
            Place::Inline => {
                let at = inline;
                inline = (inline + entry.bytes).next_multiple_of(ALIGNMENT as u64);
                at
            }
            Place::Stream => {
                let at = stream;
                let end = stream.checked_add(entry.bytes);
                stream = end.ok_or_else(|| {
                    wrong(number, "bytes", entry.bytes, format!("less than 2^64 with {at} bytes before"))
                })?;
                at
            }
            // Whether it lies inside the sender's arena is known where that is mapped.
            Place::Shared => entry.offset,
        };
        if entry.offset != expected {
            return Err(wrong(number, "offset", entry.offset, expected.to_string()));
        }
        if entry.place == Place::Shared && entry.crc != 0 {
            return Err(wrong(number, "checksum", entry.crc.into(), "0 in shared memory".into()));
        }
        entries.push(entry);
    }
    if rest.len() >= ALIGNMENT || rest.iter().any(|&byte| byte != 0) {
        return Err(misfit());
    }
    if inline != u64::from(header.inline_bytes) {
        return Err(MessageError::Header {
            field: "inline bytes",
            found: header.inline_bytes.into(),
            expected: "what the small tensors take",
        });
    }
    let mut names = HashSet::with_capacity(entries.len());
    match (0..).zip(&entries).find(|(_, entry)| !names.insert(&entry.name)) {
        Some((tensor, _)) => Err(MessageError::Twice { tensor }),
        None => Ok(entries),
    }
}

/// Check the bytes of all payloads against the limits.
pub(super) fn check_bytes(entries: &[Entry], limits: &Limits) -> Result<(), MessageError> {
    let bytes = entries.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
    let limit = limits.payload_bytes_max;
    if bytes > limit { Err(MessageError::TooLarge { bytes, limit }) } else { Ok(()) }
}

/// The next entry; `None` where the table ends before the entry does.
fn decode_entry(rest: &mut &[u8], tensor: u16) -> Option<Result<Entry, MessageError>> {
    let number = u16::from_le_bytes(take(rest)?);
    let [dtype, rank, place, name_bytes, zero, zero_too] = take(rest)?;
    let offset = u64::from_le_bytes(take(rest)?);
    let crc = u32::from_le_bytes(take(rest)?);
    let zeros = u32::from_le_bytes(take(rest)?);
    if usize::from(rank) > RANK_MAX {
        return Some(Err(wrong(tensor, "rank", rank.into(), "0 to 8".into())));
    }
    let shape: Box<[u64]> = (0..rank).map(|_| take(rest).map(u64::from_le_bytes)).collect::<Option<_>>()?;
    let name_bytes = usize::from(name_bytes);
    let (padded, behind) = rest.split_at_checked(name_bytes.next_multiple_of(8))?;
    *rest = behind;
    let (text, padding) = padded.split_at(name_bytes);
    let entry = || {
        if (zero, zero_too, zeros) != (0, 0, 0) || padding.iter().any(|&byte| byte != 0) {
            return Err(wrong(tensor, "a byte between the fields", 1, "0".into()));
        }
        let name = match (number, std::str::from_utf8(text).map_err(|_| MessageError::Name { tensor })?) {
            (NAMED, "") => return Err(wrong(tensor, "bytes of the name", 0, "1 to 255".into())),
            (NAMED, text) => TensorName::Text(text.into()),
            (number, "") => TensorName::Number(number),
            _ => {
                return Err(wrong(
                    tensor,
                    "bytes of the name",
                    name_bytes as u64,
                    "0 beside a number".into(),
                ));
            }
        };
        let dtype = DType::of(dtype).ok_or_else(|| wrong(tensor, "dtype", dtype.into(), "1 to 10".into()))?;
        let bytes = bytes_of(dtype, &shape)
            .ok_or_else(|| wrong(tensor, "bytes", u64::MAX, "the product of its dimensions".into()))?;
        let place = match (place, bytes <= SMALL_BYTES as u64) {
            (0, true) => Place::Inline,
            (1, false) => Place::Stream,
            (2, false) => Place::Shared,
            _ => {
                let expected = format!("0 up to {SMALL_BYTES} bytes, 1 or 2 above; this tensor has {bytes}");
                return Err(wrong(tensor, "place", place.into(), expected));
            }
        };
        Ok(Entry { name, dtype, shape: shape.clone(), place, offset, bytes, crc })
    };
    Some(entry())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*first)
}

fn wrong(tensor: u16, field: &'static str, found: u64, expected: String) -> MessageError {
    MessageError::Tensor { tensor, field, found, expected }
}
