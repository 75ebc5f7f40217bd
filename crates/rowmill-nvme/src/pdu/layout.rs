//! Byte layouts of PDU headers.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the largest header.
pub(crate) const PDU_HEADER_BYTES_MAX: usize = 128;

/// Flags of the common header.
pub(crate) mod flag {
    /// A header digest follows the header.
    pub(crate) const HEADER_DIGEST: u8 = 1 << 0;
    /// A data digest follows the data.
    pub(crate) const DATA_DIGEST: u8 = 1 << 1;
    /// The last data PDU of a transfer.
    pub(crate) const LAST: u8 = 1 << 2;
    /// The command succeeded; no response follows.
    pub(crate) const SUCCESS: u8 = 1 << 3;
}

/// The first 8 bytes of every PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// A [`Kind`](super::Kind).
    pub kind: u8,
    /// Digests, last data PDU, success.
    pub flags: u8,
    /// Bytes of the header, without its digest.
    pub header_bytes: u8,
    /// Where data starts, from the first byte of the PDU; 0 without data.
    pub data_offset: u8,
    /// Bytes of the whole PDU.
    pub pdu_bytes: U32,
}

/// ICReq and ICResp after the common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Initialize {
    /// Format version of PDUs: 0.
    pub version: U16,
    /// Data starts at multiples of this plus one words of 4 bytes, 0 to 31.
    pub alignment: u8,
    /// Digests requested, or granted: bit 0 headers, bit 1 data.
    pub digests: u8,
    /// In a request: R2Ts per command that may be open, less one. In a response: the most data of one H2CData.
    pub limit: U32,
    /// Zeros.
    pub reserved: [u8; 112],
}

/// H2CTermReq and C2HTermReq after the common header. The header of the offending PDU follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Terminate {
    /// A [`FatalReason`](super::FatalReason).
    pub reason: U16,
    /// Further information, whose meaning depends on the reason.
    pub information: U32,
    /// Zeros.
    pub reserved: [u8; 10],
}

/// H2CData, C2HData and R2T after the common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Transfer {
    /// The command.
    pub cid: U16,
    /// The controller's number for an R2T, which H2CData repeats.
    pub tag: U16,
    /// Offset in the data of the command.
    pub offset: U32,
    /// Bytes of data.
    pub bytes: U32,
    /// Zeros.
    pub reserved: [u8; 4],
}

/// Offsets of fields from the first byte of a PDU, for termination requests.
pub(crate) mod field {
    pub(crate) const KIND: u32 = 0;
    pub(crate) const FLAGS: u32 = 1;
    pub(crate) const HEADER_BYTES: u32 = 2;
    pub(crate) const DATA_OFFSET: u32 = 3;
    pub(crate) const PDU_BYTES: u32 = 4;
    pub(crate) const VERSION: u32 = 8;
    pub(crate) const CID: u32 = 8;
    pub(crate) const ALIGNMENT: u32 = 10;
    pub(crate) const TAG: u32 = 10;
    pub(crate) const DIGESTS: u32 = 11;
    pub(crate) const LIMIT: u32 = 12;
    pub(crate) const BYTES: u32 = 16;
    /// The command identifier of a response capsule.
    pub(crate) const RESPONSE_CID: u32 = 20;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::Kind;

    #[test]
    fn headers_have_the_sizes_of_the_standard() {
        let common = size_of::<CommonHeader>();
        assert_eq!(common + size_of::<Initialize>(), Kind::InitializeRequest.header_bytes());
        assert_eq!(common + size_of::<Terminate>(), Kind::HostTerminate.header_bytes());
        assert_eq!(common + size_of::<Transfer>(), Kind::ReadyToTransfer.header_bytes());
        assert_eq!(common + size_of::<crate::Command>(), Kind::Command.header_bytes());
        assert_eq!(common + size_of::<crate::Completion>(), Kind::Response.header_bytes());
    }
}
