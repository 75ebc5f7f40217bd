//! The SMART and health log page.

use zerocopy::little_endian::{U16, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// SMART and health: counters of the storage node. A unit of data is 1,000 blocks of 512 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Health {
    /// Bit 0: spare space is low; bit 3: the media is read-only.
    pub warning: u8,
    /// In kelvins.
    pub temperature: U16,
    /// Percent of spare space that is left.
    pub spare: u8,
    reserved_4: [u8; 28],
    /// Units of data read.
    pub units_read: U128,
    /// Units of data written.
    pub units_written: U128,
    /// Read commands.
    pub reads: U128,
    /// Write commands.
    pub writes: U128,
    reserved_96: [u8; 32],
    /// Hours since the node started.
    pub hours: U128,
    reserved_144: [u8; 16],
    /// Blocks whose checksum was wrong.
    pub media_errors: U128,
    /// Errors that the error log ever had.
    pub errors: U128,
    reserved_192: [u8; 320],
}

impl Health {
    /// Health of a node on which nothing has happened. A temperature is not known: 300 K stands for it.
    pub fn new() -> Health {
        use zerocopy::FromZeros;
        Health { temperature: 300.into(), spare: 100, ..Health::new_zeroed() }
    }
}

impl Health {
    /// The log page.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

impl Default for Health {
    fn default() -> Health {
        Health::new()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        assert_eq!(size_of::<Health>(), 512);
        assert_eq!(offset_of!(Health, temperature), 1);
        assert_eq!(offset_of!(Health, spare), 3);
        assert_eq!(offset_of!(Health, units_read), 32);
        assert_eq!(offset_of!(Health, reads), 64);
        assert_eq!(offset_of!(Health, hours), 128);
        assert_eq!(offset_of!(Health, media_errors), 160);
        assert_eq!(offset_of!(Health, errors), 176);
    }
}
