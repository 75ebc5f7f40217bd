use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::VENDOR_VERSION;

const MAGIC: [u8; 8] = *b"rowmill\0";

/// The first 64 bytes of the vendor area of Identify Controller: the commands on rows exist, within these limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VendorArea {
    magic: [u8; 8],
    /// Version of the layouts: 1.
    pub version: U16,
    reserved_10: [u8; 2],
    /// Most bytes of one transfer.
    pub transfer_bytes_max: U32,
    /// Most features of one stage command.
    pub features_max: U32,
    /// Seconds that a staged result is kept.
    pub staged_seconds_max: U32,
    /// Most bytes of all staged results of one controller.
    pub staged_bytes_max: U64,
    /// Most staged results of one controller.
    pub staged_max: U32,
    reserved_36: [u8; 28],
}

impl VendorArea {
    /// The area of a controller with these limits.
    pub fn new(
        features_max: u32,
        staged_max: u32,
        staged_bytes_max: u64,
        staged_seconds_max: u32,
    ) -> VendorArea {
        VendorArea {
            magic: MAGIC,
            version: VENDOR_VERSION.into(),
            reserved_10: [0; 2],
            transfer_bytes_max: (crate::TRANSFER_BYTES_MAX as u32).into(),
            features_max: features_max.into(),
            staged_seconds_max: staged_seconds_max.into(),
            staged_bytes_max: staged_bytes_max.into(),
            staged_max: staged_max.into(),
            reserved_36: [0; 28],
        }
    }

    /// The commands on rows exist, in `version`, which may be another one than that of this crate.
    pub fn is_present(&self) -> bool {
        self.magic == MAGIC
    }
}
