//! CRC32C checksums of bytes, and of a block together with its log address.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C (Castagnoli) of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Extend a checksum: CRC32C of the bytes that have checksum `crc`, followed by `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // The digest's state is the complement of the final checksum.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// CRC32C of `bytes` followed by `address` as eight little-endian bytes.
///
/// The address is included so that a misplaced block, or an older version of the block that was written at
/// another log address, fails verification.
pub fn checksum(bytes: &[u8], address: u64) -> u32 {
    crc32c_append(crc32c(bytes), &address.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation, bit by bit (reflected polynomial 0x82F63B78).
    fn checksum_by_definition(bytes: &[u8], address: u64) -> u32 {
        let mut crc = u32::MAX;
        for byte in bytes.iter().copied().chain(address.to_le_bytes()) {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0x82F6_3B78 & 0_u32.wrapping_sub(crc & 1));
            }
        }
        !crc
    }

    #[test]
    fn checksums_equal_the_definition() {
        let bytes: Vec<u8> = (0..4096_u32).map(|i| (i * 31 % 251) as u8).collect();
        for len in [0, 1, 7, 8, 512, 4095, 4096] {
            for address in [0, 1, u64::MAX] {
                assert_eq!(checksum(&bytes[..len], address), checksum_by_definition(&bytes[..len], address));
            }
        }
    }

    #[test]
    fn flipped_bits_and_wrong_addresses_are_detected() {
        let mut block = vec![0_u8; 4096];
        let good = checksum(&block, 9);
        assert_ne!(good, checksum(&block, 10));
        block[4095] ^= 1;
        assert_ne!(good, checksum(&block, 9));
    }

    #[test]
    fn stored_checksums_stay_valid() {
        // 0xE306_9283 is the published check value of CRC32C for the string "123456789".
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(checksum(b"123456789", 0), 0xB94F_23A0);
        assert_eq!(checksum(b"123456789", 0x0102_0304_0506_0708), 0x139E_9336);
    }
}
