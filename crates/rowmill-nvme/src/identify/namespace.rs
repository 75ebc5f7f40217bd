//! The data of Identify Namespace.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::controller::Namespace;

/// Identify Namespace.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: blocks.
    pub blocks: U64,
    /// NCAP: blocks that may be in use.
    pub capacity: U64,
    /// NUSE: blocks in use.
    pub used: U64,
    reserved_24: [u8; 9],
    /// DLFEAT: bits 0 to 2, what deallocated blocks read as: 0 unknown, 1 zeros.
    pub deallocated: u8,
    reserved_34: [u8; 65],
    /// NSATTR: bit 0, the namespace is write protected.
    pub attributes: u8,
    reserved_100: [u8; 4],
    /// NGUID: the namespace, by a UUID.
    pub guid: [u8; 16],
    reserved_120: [u8; 8],
    /// LBAF0: bytes of metadata per block.
    pub metadata_bytes: U16,
    /// LBAF0: a block has 2 to this power bytes.
    pub block_shift: u8,
    reserved_131: [u8; 3965],
}

impl IdentifyNamespace {
    /// Data about a namespace.
    pub(crate) fn new(namespace: &Namespace) -> IdentifyNamespace {
        IdentifyNamespace {
            blocks: namespace.blocks.into(),
            capacity: namespace.blocks.into(),
            used: namespace.blocks.into(),
            deallocated: u8::from(namespace.is_zero_after_deallocate),
            attributes: u8::from(namespace.is_write_protected),
            guid: namespace.guid,
            block_shift: namespace.block_shift,
            ..IdentifyNamespace::new_zeroed()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        assert_eq!(size_of::<IdentifyNamespace>(), 4096);
        assert_eq!(offset_of!(IdentifyNamespace, deallocated), 33);
        assert_eq!(offset_of!(IdentifyNamespace, attributes), 99);
        assert_eq!(offset_of!(IdentifyNamespace, guid), 104);
        assert_eq!(offset_of!(IdentifyNamespace, metadata_bytes), 128);
        assert_eq!(offset_of!(IdentifyNamespace, block_shift), 130);
    }
}
