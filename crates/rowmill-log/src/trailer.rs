//! The end of every segment: the checksums of its blocks and the keys of its rows.
//!
//! All fields are little-endian. The *head* is read before the first row of a segment. The keys are read only
//! when the segment is cleaned or checked.
//!
//! | byte | field |
//! |---|---|
//! | 0 | magic `RMSEGMNT` |
//! | 8 | format version, u32 |
//! | 12 | CRC32C of the rest of the head, u32 |
//! | 16 | sequence number of the segment, u64 |
//! | 24 | group, u32 |
//! | 28 | rows, u32 |
//! | 32 | bytes of a row, u32 |
//! | 36 | data blocks of a full segment, u32 |
//! | 40 | CRC32C of the keys of the rows present, u32 |
//! | 44 | zero, u32 |
//! | 48 | checksum of every data block, u32 each; 0 for the blocks a short segment does not use |
//! | ... | keys: category u32, id u64 of every row |
//!
//! The checksum of a block covers its content and its logical address: sequence number * data blocks of a
//! segment + block. Sequence numbers are never used twice, so the check detects an older block, a block of
//! another place and a flipped bit. The expected value is stored apart from the block, so it detects a lost
//! write, too. The checksums of head and keys use the sequence number as their address.

use rowmill_io::checksum;
use rowmill_rows::{Category, RowKey};

use super::error::Damage;
use super::geometry::Geometry;

const MAGIC: &[u8; 8] = b"RMSEGMNT";
const VERSION: u32 = 1;
const CHECKSUMS_AT: usize = 48;
const KEY_BYTES: usize = 12;

/// Bytes of a trailer for a number of data blocks and rows.
pub(super) fn bytes(data_blocks: usize, rows: usize) -> usize {
    head_bytes(data_blocks) + rows * KEY_BYTES
}

/// Bytes of the head: all bytes before the keys.
pub(super) fn head_bytes(data_blocks: usize) -> usize {
    CHECKSUMS_AT + 4 * data_blocks
}

/// The segment that a trailer must belong to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) group: u32,
    pub(super) sequence: u64,
    pub(super) rows: u32,
}

/// The checksum of data block `block` of segment `sequence`.
pub(super) fn block_checksum(geometry: &Geometry, sequence: u64, block: u32, content: &[u8]) -> u32 {
    let address = sequence.wrapping_mul(u64::from(geometry.data_blocks())).wrapping_add(u64::from(block));
    checksum(content, address)
}

/// Write the key of row `index`.
pub(super) fn put_key(trailer: &mut [u8], geometry: &Geometry, index: u32, key: RowKey) {
    let at = key_at(geometry, index);
    trailer[at..at + 4].copy_from_slice(&key.category.0.to_le_bytes());
    trailer[at + 4..at + KEY_BYTES].copy_from_slice(&key.id.to_le_bytes());
}

/// The key of row `index`.
pub(super) fn key(trailer: &[u8], geometry: &Geometry, index: u32) -> RowKey {
    let at = key_at(geometry, index);
    RowKey { category: Category(u32_at(trailer, at)), id: u64_at(trailer, at + 4) }
}

/// Write the head of a trailer whose keys are already written.
pub(super) fn seal(trailer: &mut [u8], geometry: &Geometry, expected: Expected, checksums: &[u32]) {
    let Expected { group, sequence, rows } = expected;
    let keys_at = head_bytes(geometry.data_blocks() as usize);
    let keys_end = key_at(geometry, rows);
    trailer[keys_end..].fill(0);
    let keys_crc = checksum(&trailer[keys_at..keys_end], sequence);
    let head = &mut trailer[..keys_at];
    head[..8].copy_from_slice(MAGIC);
    put_u32(head, 8, VERSION);
    head[16..24].copy_from_slice(&sequence.to_le_bytes());
    put_u32(head, 24, group);
    put_u32(head, 28, rows);
    put_u32(head, 32, geometry.stride() as u32);
    put_u32(head, 36, geometry.data_blocks());
    put_u32(head, 40, keys_crc);
    put_u32(head, 44, 0);
    head[CHECKSUMS_AT..].fill(0);
    for (field, checksum) in head[CHECKSUMS_AT..].chunks_exact_mut(4).zip(checksums) {
        field.copy_from_slice(&checksum.to_le_bytes());
    }
    let crc = checksum(&head[16..], sequence);
    put_u32(head, 12, crc);
}

/// The checksums of the blocks in use, after verifying that the head is the expected one.
pub(super) fn checksums(
    trailer: &[u8],
    geometry: &Geometry,
    expected: Expected,
) -> Result<Box<[u32]>, Damage> {
    if &trailer[..8] != MAGIC {
        return Err(Damage::NotATrailer);
    }
    let version = u32_at(trailer, 8);
    if version != VERSION {
        return Err(Damage::Version { expected: VERSION, found: version });
    }
    let head = &trailer[..head_bytes(geometry.data_blocks() as usize)];
    let found = checksum(&head[16..], u64_at(head, 16));
    let written = u32_at(head, 12);
    if found != written {
        return Err(Damage::Checksum { expected: written, found });
    }
    let fields = [
        ("sequence number", expected.sequence, u64_at(head, 16)),
        ("group", expected.group.into(), u32_at(head, 24).into()),
        ("row count", expected.rows.into(), u32_at(head, 28).into()),
        ("row bytes", geometry.stride() as u64, u32_at(head, 32).into()),
        ("data blocks", geometry.data_blocks().into(), u32_at(head, 36).into()),
    ];
    for (field, expected, found) in fields {
        if expected != found {
            return Err(Damage::Field { field, expected, found });
        }
    }
    let used = geometry.used_blocks(expected.rows) as usize;
    Ok(head[CHECKSUMS_AT..].chunks_exact(4).take(used).map(|field| u32_at(field, 0)).collect())
}

/// Check the keys of a trailer whose head is already verified.
pub(super) fn check_keys(trailer: &[u8], geometry: &Geometry, rows: u32) -> Result<(), Damage> {
    let keys_at = head_bytes(geometry.data_blocks() as usize);
    let expected = u32_at(trailer, 40);
    let found = checksum(&trailer[keys_at..key_at(geometry, rows)], u64_at(trailer, 16));
    if expected == found { Ok(()) } else { Err(Damage::Checksum { expected, found }) }
}

fn key_at(geometry: &Geometry, index: u32) -> usize {
    head_bytes(geometry.data_blocks() as usize) + index as usize * KEY_BYTES
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rowmill_io::BLOCK_BYTES;

    const EXPECTED: Expected = Expected { group: 3, sequence: 77, rows: 70 };

    fn sealed(geometry: &Geometry) -> Vec<u8> {
        let mut trailer = vec![0xA5; geometry.trailer_blocks() as usize * BLOCK_BYTES];
        for index in 0..EXPECTED.rows {
            put_key(
                &mut trailer,
                geometry,
                index,
                RowKey { category: Category(1), id: u64::MAX - u64::from(index) },
            );
        }
        seal(&mut trailer, geometry, EXPECTED, &[11, 22]);
        trailer
    }

    #[test]
    fn a_sealed_trailer_reads_back() {
        let geometry = Geometry::new(64, 64 << 10);
        let trailer = sealed(&geometry);
        assert_eq!(*checksums(&trailer, &geometry, EXPECTED).unwrap(), [11, 22]);
        check_keys(&trailer, &geometry, EXPECTED.rows).unwrap();
        assert_eq!(key(&trailer, &geometry, 69).id, u64::MAX - 69);
    }

    #[test]
    fn the_trailer_of_another_segment_is_refused() {
        let geometry = Geometry::new(64, 64 << 10);
        let trailer = sealed(&geometry);
        for (wrong, field) in [
            (Expected { sequence: 78, ..EXPECTED }, "sequence number"),
            (Expected { group: 4, ..EXPECTED }, "group"),
            (Expected { rows: 71, ..EXPECTED }, "row count"),
        ] {
            let fault = checksums(&trailer, &geometry, wrong).unwrap_err();
            assert!(matches!(fault, Damage::Field { field: found, .. } if found == field), "{fault}");
        }
    }

    #[test]
    fn every_flipped_bit_of_head_and_keys_is_detected() {
        let geometry = Geometry::new(64, 64 << 10);
        let good = sealed(&geometry);
        for bit in 0..key_at(&geometry, EXPECTED.rows) * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let result =
                checksums(&bad, &geometry, EXPECTED).and_then(|_| check_keys(&bad, &geometry, EXPECTED.rows));
            assert!(result.is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_bytes_of_version_1_do_not_change() {
        let geometry = Geometry::new(64, 64 << 10);
        let trailer = sealed(&geometry);
        assert_eq!(&trailer[..12], b"RMSEGMNT\x01\0\0\0");
        assert_eq!(&trailer[16..40], b"M\0\0\0\0\0\0\0\x03\0\0\0F\0\0\0@\0\0\0\x0d\0\0\0");
        assert_eq!(checksum(&trailer, 0), 3_149_871_130);
        assert_eq!(block_checksum(&geometry, 77, 1, &[0x5A; BLOCK_BYTES]), 1_291_058_791);
    }
}
