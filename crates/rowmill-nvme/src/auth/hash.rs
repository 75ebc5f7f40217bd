//! Hash functions of DH-HMAC-CHAP.

use ring::hmac;

/// A hash function of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// Every hash function.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    pub(super) fn from_byte(byte: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|&hash| hash as u8 == byte)
    }

    /// Bytes of a digest.
    pub fn bytes(self) -> usize {
        16 + 16 * self as usize
    }

    pub(super) fn algorithm(self) -> hmac::Algorithm {
        match self {
            Hash::Sha256 => hmac::HMAC_SHA256,
            Hash::Sha384 => hmac::HMAC_SHA384,
            Hash::Sha512 => hmac::HMAC_SHA512,
        }
    }
}
