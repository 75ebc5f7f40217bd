//! Submission queue entries: the 64 bytes of a command.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Sgl, fabrics};

/// PSDT of the flags: the data pointer is an SGL, as all commands over fabrics have it.
const SGL_FLAG: u8 = 1 << 6;
const PSDT_MASK: u8 = 3 << 6;
const FUSE_MASK: u8 = 3;

/// A submission queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Command {
    /// What to do; bits 0 and 1 say which way data goes.
    pub opcode: u8,
    /// Fused operation, and how data is described.
    pub flags: u8,
    /// The host's number of the command, unique on its queue while the command runs.
    pub cid: U16,
    /// The namespace; the lowest byte is the type of a fabrics command.
    pub nsid: U32,
    /// Dwords 2 and 3.
    pub dwords_2: [U32; 2],
    /// Not used.
    pub metadata: U64,
    /// Where the data is.
    pub sgl: Sgl,
    /// Dwords 10 to 15.
    pub dwords_10: [U32; 6],
}

/// Which way the data of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    None,
    ToController,
    ToHost,
    /// Not used by any command.
    Both,
}

impl Command {
    /// A command whose data, if any, is sent in data PDUs. Other fields are 0.
    pub fn new(opcode: u8, nsid: u32) -> Command {
        Command { opcode, flags: SGL_FLAG, nsid: nsid.into(), sgl: Sgl::transfer(0), ..Command::new_zeroed() }
    }

    /// A fabrics command.
    pub fn fabrics(kind: u8) -> Command {
        Command::new(fabrics::OPCODE, kind.into())
    }

    /// The type of a fabrics command.
    pub fn fabrics_kind(&self) -> Option<u8> {
        (self.opcode == fabrics::OPCODE).then(|| self.nsid.get() as u8)
    }

    /// Dword `number`, which is 10 to 15.
    pub fn dword(&self, number: usize) -> u32 {
        self.dwords_10[number - 10].get()
    }

    /// The same command with another dword `number`, which is 10 to 15.
    #[must_use]
    pub fn with(mut self, number: usize, value: u32) -> Command {
        self.dwords_10[number - 10] = value.into();
        self
    }

    /// Dwords `number` (low) and `number + 1` (high).
    pub fn quadword(&self, number: usize) -> u64 {
        u64::from(self.dword(number)) | u64::from(self.dword(number + 1)) << 32
    }

    /// The same command with other dwords `number` (low) and `number + 1` (high).
    #[must_use]
    pub fn with_quadword(self, number: usize, value: u64) -> Command {
        self.with(number, value as u32).with(number + 1, (value >> 32) as u32)
    }

    /// The command describes its data by an SGL and is not fused with another one.
    pub(crate) fn has_valid_flags(&self) -> bool {
        self.flags & FUSE_MASK == 0 && self.flags & PSDT_MASK == SGL_FLAG
    }

    pub(crate) fn direction(&self) -> Direction {
        match self.fabrics_kind().unwrap_or(self.opcode) & 3 {
            0 => Direction::None,
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => Direction::Both,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        assert_eq!(size_of::<Command>(), 64);
        assert_eq!(offset_of!(Command, cid), 2);
        assert_eq!(offset_of!(Command, nsid), 4);
        assert_eq!(offset_of!(Command, sgl), 24);
        assert_eq!(offset_of!(Command, sgl) + offset_of!(Sgl, bytes), 32);
        assert_eq!(offset_of!(Command, sgl) + offset_of!(Sgl, kind), 39);
        assert_eq!(offset_of!(Command, dwords_10), 40);
        let command = Command::new(2, 1).with_quadword(10, 0x1234_5678_9abc).with(12, 7);
        assert_eq!((command.dword(10), command.dword(11), command.dword(12)), (0x5678_9abc, 0x1234, 7));
        assert_eq!(command.quadword(10), 0x1234_5678_9abc);
    }
}
