//! Fetch: the header of a result, and the damaged vectors that it lists.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::VENDOR_VERSION;
use crate::command::{Command, Status, io};

/// The rows that a result was pooled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsOf {
    /// Frames of the feed up to this one are applied.
    pub sequence: u64,
    /// The generation of the tables, as log page 0xC0 has it.
    pub generation: u64,
}

/// A fetch command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The handle of a stage command.
    pub handle: u64,
    /// Where in the result to start, in bytes.
    pub offset: u32,
    /// Keep the result, to fetch more of it. Else it is freed.
    pub is_kept: bool,
    /// Answer also if some vectors are damaged. Else the command fails.
    pub takes_damaged: bool,
}

/// What a stage command gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagedResult {
    /// The vectors.
    pub bytes: Vec<u8>,
    /// How many vectors need rows that cannot be read. Each of their bytes is [`DAMAGED_BYTE`].
    pub damaged: u16,
}

/// Each byte of a damaged vector, so its numbers are NaN.
pub const DAMAGED_BYTE: u8 = 0xff;

const KEEP: u32 = 1;
const TAKE_DAMAGED: u32 = 1 << 1;

impl Fetch {
    /// Parse a fetch command.
    pub(crate) fn parse(command: &Command) -> Result<Fetch, Status> {
        let flags = command.dword(13);
        if flags & !(KEEP | TAKE_DAMAGED) != 0 {
            return Err(Status::INVALID_FIELD);
        }
        Ok(Fetch {
            handle: command.quadword(10),
            offset: command.dword(12),
            is_kept: flags & KEEP != 0,
            takes_damaged: flags & TAKE_DAMAGED != 0,
        })
    }

    /// The command, for namespace `nsid`.
    pub fn to_command(self, nsid: u32) -> Command {
        Command::new(io::FETCH, nsid)
            .with_quadword(10, self.handle)
            .with(12, self.offset)
            .with(13, (u32::from(self.is_kept) * KEEP) | (u32::from(self.takes_damaged) * TAKE_DAMAGED))
    }

    /// The data of the answer, of exactly `length` bytes: header, bytes of the result, zeros.
    pub fn encode(self, result: &StagedResult, as_of: AsOf, length: usize) -> Vec<u8> {
        let part = result.bytes.get(self.offset as usize..).unwrap_or_default();
        let part = &part[..part.len().min(length.saturating_sub(size_of::<FetchHeader>()))];
        let header = FetchHeader {
            version: VENDOR_VERSION.into(),
            bytes: (part.len() as u32).into(),
            damaged: result.damaged.into(),
            total_bytes: (result.bytes.len() as u64).into(),
            sequence: as_of.sequence.into(),
            generation: as_of.generation.into(),
        };
        let mut data = Vec::with_capacity(length);
        data.extend(header.as_bytes());
        data.extend(part);
        data.resize(length, 0);
        data
    }
}

/// The first 32 bytes of what a fetch command gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FetchHeader {
    /// Version of the format: 1.
    pub version: U16,
    /// How many vectors of the whole result are damaged: they need rows that cannot be read. Each of their bytes is
    /// [`DAMAGED_BYTE`].
    pub damaged: U16,
    /// Bytes of the result that follow. Zeros fill up the rest.
    pub bytes: U32,
    /// Bytes of the whole result.
    pub total_bytes: U64,
    /// Frames of the feed up to this one are applied to the rows that were pooled.
    pub sequence: U64,
    /// The generation of the tables that were pooled.
    pub generation: U64,
}

impl FetchHeader {
    /// The header of an answer, and the bytes that it holds; `None` if it is malformed.
    pub fn parse(data: &[u8]) -> Option<(FetchHeader, &[u8])> {
        let (header, rest) = FetchHeader::read_from_prefix(data).ok()?;
        let part = rest.get(..header.bytes.get() as usize)?;
        (header.version.get() == VENDOR_VERSION).then_some((header, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_exactly_the_length_asked_for() {
        let result = StagedResult { bytes: (0..100).collect(), damaged: 2 };
        for (offset, length, expected) in
            [(0, 132, 0..100), (0, 136, 0..100), (40, 52, 40..60), (100, 40, 0..0), (0, 32, 0..0)]
        {
            let fetch = Fetch { handle: 1, offset, is_kept: false, takes_damaged: true };
            let data = fetch.encode(&result, AsOf { sequence: 77, generation: 3 }, length);
            assert_eq!(data.len(), length);
            let (header, part) = FetchHeader::parse(&data).unwrap();
            assert_eq!(
                (
                    header.total_bytes.get(),
                    header.sequence.get(),
                    header.generation.get(),
                    header.damaged.get()
                ),
                (100, 77, 3, 2)
            );
            assert_eq!(part, &result.bytes[expected]);
        }
        assert!(FetchHeader::parse(&[0; 31]).is_none());
        assert!(FetchHeader::parse(&[0; 32]).is_none(), "version 0");
    }

    #[test]
    fn commands_are_parsed_and_unknown_flags_refused() {
        for (is_kept, takes_damaged) in [(true, false), (false, true), (true, true)] {
            let fetch = Fetch { handle: u64::MAX - 1, offset: 7, is_kept, takes_damaged };
            assert_eq!(Fetch::parse(&fetch.to_command(1)), Ok(fetch));
            assert_eq!(Fetch::parse(&fetch.to_command(1).with(13, 4)), Err(Status::INVALID_FIELD));
        }
    }
}
