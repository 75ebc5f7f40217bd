//! Apply: a fill of a namespace, and frames of the feed.

use rowmill_io::{crc32c, crc32c_append};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::VENDOR_VERSION;
use crate::command::{Command, Status, io};

/// One apply command, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Apply<'a> {
    /// Begin a fill, which replaces all tables of the namespace when it ends.
    Begin(ApplyBegin<'a>),
    /// A frame of the feed.
    Frame {
        /// The sequence number of the frame; during a fill, frames are numbered from 0.
        sequence: u64,
        /// Sequence numbers between the last frame and this one that no frame has.
        skipped: u64,
        /// The payload of the frame, as in a segment of the feed.
        payload: &'a [u8],
    },
    /// End the fill: its tables replace those of the namespace.
    End {
        /// Frames of the feed up to this one are in the rows of the fill.
        sequence: u64,
    },
}

/// The data that begins a fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyBegin<'a> {
    /// The seed of the store, by which missing rows are initialized.
    pub seed: u64,
    /// The tables, in the order of their numbers.
    pub tables: Vec<TableSpec<'a>>,
}

/// A table of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSpec<'a> {
    /// The name, at most 255 bytes.
    pub name: &'a str,
    /// Its spec as JSON, as the manifest of a store has it.
    pub spec: &'a str,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    version: U16,
    reserved: [u8; 2],
    tables: U32,
    seed: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    spec_bytes: U32,
    name_bytes: U16,
    reserved: [u8; 2],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FrameHeader {
    bytes: U32,
    checksum: U32,
}

const ACTION_BEGIN: u32 = 0;
const ACTION_FRAME: u32 = 1;
const ACTION_END: u32 = 2;

/// A frame of the feed has at most this many bytes of payload.
const FRAME_BYTES_MAX: u32 = 300 << 10;

impl<'a> Apply<'a> {
    /// Parse an apply command and its data.
    pub(crate) fn parse(command: &Command, data: &'a [u8]) -> Result<Apply<'a>, Status> {
        let sequence = command.quadword(12);
        match command.dword(10) {
            ACTION_BEGIN => parse_begin(data).map(Apply::Begin).ok_or(Status::MALFORMED),
            ACTION_FRAME => {
                let payload = parse_frame(sequence, data).ok_or(Status::MALFORMED)?;
                Ok(Apply::Frame { sequence, skipped: command.quadword(14), payload })
            }
            ACTION_END if data.is_empty() => Ok(Apply::End { sequence }),
            ACTION_END => Err(Status::MALFORMED),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// The command that ends a fill.
    pub fn end(nsid: u32, sequence: u64) -> Command {
        Command::new(io::APPLY, nsid).with(10, ACTION_END).with_quadword(12, sequence)
    }
}

fn parse_begin(data: &[u8]) -> Option<ApplyBegin<'_>> {
    let (header, mut rest) = Header::read_from_prefix(data).ok()?;
    // Each table needs an entry, so a count that lies asks for no memory.
    let count = header.tables.get() as usize;
    if header.version.get() != VENDOR_VERSION || count > rest.len() / size_of::<Entry>() {
        return None;
    }
    let mut tables = Vec::with_capacity(count);
    for _ in 0..count {
        let (entry, after) = Entry::read_from_prefix(rest).ok()?;
        let name_bytes = entry.name_bytes.get() as usize;
        let (name, after) = after.split_at_checked(name_bytes).filter(|_| (1..=255).contains(&name_bytes))?;
        let (spec, after) = after.split_at_checked(entry.spec_bytes.get() as usize)?;
        tables
            .push(TableSpec { name: std::str::from_utf8(name).ok()?, spec: std::str::from_utf8(spec).ok()? });
        rest = after;
    }
    // Up to three zeros fill a transfer up to a multiple of 4 bytes.
    (rest.len() < 4 && rest.iter().all(|&byte| byte == 0))
        .then_some(ApplyBegin { seed: header.seed.get(), tables })
}

fn checksum(sequence: u64, payload: &[u8]) -> u32 {
    let crc = crc32c_append(crc32c(&sequence.to_le_bytes()), &(payload.len() as u32).to_le_bytes());
    crc32c_append(crc, payload)
}

fn parse_frame(sequence: u64, data: &[u8]) -> Option<&[u8]> {
    let (header, rest) = FrameHeader::read_from_prefix(data).ok()?;
    let payload = rest.get(..header.bytes.get() as usize)?;
    let is_valid =
        header.bytes.get() <= FRAME_BYTES_MAX && header.checksum.get() == checksum(sequence, payload);
    is_valid.then_some(payload)
}

/// The command that begins a fill, and its data.
///
/// # Panics
///
/// If a name is longer than 255 bytes.
pub fn encode_begin(nsid: u32, seed: u64, tables: &[TableSpec<'_>]) -> (Command, Vec<u8>) {
    let header = Header {
        version: VENDOR_VERSION.into(),
        tables: (tables.len() as u32).into(),
        seed: seed.into(),
        ..Header::new_zeroed()
    };
    let mut data = header.as_bytes().to_vec();
    for table in tables {
        assert!(table.name.len() <= 255, "a name has at most 255 bytes");
        let entry = Entry {
            spec_bytes: (table.spec.len() as u32).into(),
            name_bytes: (table.name.len() as u16).into(),
            ..Entry::new_zeroed()
        };
        data.extend(entry.as_bytes());
        data.extend(table.name.bytes().chain(table.spec.bytes()));
    }
    data.resize(data.len().next_multiple_of(4), 0);
    (Command::new(io::APPLY, nsid).with(10, ACTION_BEGIN), data)
}

/// The command that applies a frame of the feed, and its data. A feed skips numbers when its store is opened again.
pub fn encode_frame(nsid: u32, sequence: u64, skipped: u64, payload: &[u8]) -> (Command, Vec<u8>) {
    let bytes = (payload.len() as u32).into();
    let header = FrameHeader { bytes, checksum: checksum(sequence, payload).into() };
    let mut data = header.as_bytes().to_vec();
    data.extend(payload);
    data.resize(data.len().next_multiple_of(4), 0);
    let command = Command::new(io::APPLY, nsid).with(10, ACTION_FRAME);
    (command.with_quadword(12, sequence).with_quadword(14, skipped), data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_survives_its_encoding_and_lies_are_refused() {
        let tables = [TableSpec { name: "users", spec: "{\"dim\":8}" }, TableSpec { name: "é", spec: "" }];
        let (command, data) = encode_begin(1, 42, &tables);
        assert_eq!(
            Apply::parse(&command, &data),
            Ok(Apply::Begin(ApplyBegin { seed: 42, tables: tables.to_vec() }))
        );
        for (at, value) in [(0, 2), (4, 3), (7, 0xff), (16, 200), (20, 0), (20, 200), (24, 0xff), (21, 1)] {
            let mut damaged = data.clone();
            damaged[at] = value;
            assert_eq!(Apply::parse(&command, &damaged), Err(Status::MALFORMED), "byte {at}");
        }
    }

    #[test]
    fn a_frame_belongs_to_its_sequence_number() {
        let (command, data) = encode_frame(1, 17, 3, b"payload");
        assert_eq!(
            Apply::parse(&command, &data),
            Ok(Apply::Frame { sequence: 17, skipped: 3, payload: b"payload" })
        );
        assert_eq!(Apply::parse(&command.with(12, 18), &data), Err(Status::MALFORMED));
        for at in 0..15 {
            let mut damaged = data.clone();
            damaged[at] ^= 1;
            assert_eq!(Apply::parse(&command, &damaged), Err(Status::MALFORMED), "byte {at}");
        }
    }

    #[test]
    fn a_fill_ends_without_data() {
        let command = Apply::end(1, 5);
        assert_eq!(Apply::parse(&command, &[]), Ok(Apply::End { sequence: 5 }));
        assert_eq!(Apply::parse(&command, &[0]), Err(Status::MALFORMED));
        assert_eq!(Apply::parse(&command.with(10, 3), &[]), Err(Status::INVALID_FIELD));
    }
}
