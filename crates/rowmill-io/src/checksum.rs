//! Checksums: CRC32C, and that of a block, over what it holds and where it belongs.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C (Castagnoli) of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC32C of some bytes with checksum `crc` followed by `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // The digest's state is what is inverted in the end.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// CRC32C of `bytes` followed by `address` as eight little-endian bytes.
///
/// A block whose content is intact but which lies at another place, or is an older version written
/// under another log address, gets another checksum.
pub fn checksum(bytes: &[u8], address: u64) -> u32 {
    crc32c_append(crc32c(bytes), &address.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, bit by bit (reflected polynomial 0x82F63B78).
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
    fn agrees_with_the_definition() {
        let bytes: Vec<u8> = (0..4096_u32).map(|i| (i * 31 % 251) as u8).collect();
        for len in [0, 1, 7, 8, 512, 4095, 4096] {
            for address in [0, 1, u64::MAX] {
                assert_eq!(checksum(&bytes[..len], address), checksum_by_definition(&bytes[..len], address));
            }
        }
    }

    #[test]
    fn sees_a_flipped_bit_and_a_wrong_place() {
        let mut block = vec![0_u8; 4096];
        let good = checksum(&block, 9);
        assert_ne!(good, checksum(&block, 10));
        block[4095] ^= 1;
        assert_ne!(good, checksum(&block, 9));
    }

    #[test]
    fn the_value_on_disk_never_changes() {
        // 0xE306_9283 is the published check value of CRC32C over the nine digits alone.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(checksum(b"123456789", 0), 0xB94F_23A0);
        assert_eq!(checksum(b"123456789", 0x0102_0304_0506_0708), 0x139E_9336);
    }
}
