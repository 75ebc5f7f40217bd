//! Header and data digests of PDUs.

/// Digests of a connection: CRC32C over headers, over data, both or neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// A digest follows every header.
    pub header: bool,
    /// A digest follows all data.
    pub data: bool,
}

/// Bytes of one digest.
pub(super) const DIGEST_BYTES: usize = 4;

impl Digests {
    /// As bits of ICReq and ICResp.
    pub(crate) fn to_bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    /// From bits of ICReq and ICResp; reserved bits are ignored.
    pub(crate) fn from_bits(bits: u8) -> Digests {
        Digests { header: bits & 1 != 0, data: bits & 2 != 0 }
    }

    /// The digests that both sides can do.
    pub(crate) fn and(self, other: Digests) -> Digests {
        Digests { header: self.header && other.header, data: self.data && other.data }
    }

    pub(super) fn header_bytes(self) -> usize {
        if self.header { DIGEST_BYTES } else { 0 }
    }

    pub(super) fn data_bytes(self) -> usize {
        if self.data { DIGEST_BYTES } else { 0 }
    }
}
