//! A buffer for one segment: being filled, or waiting to be written.

use rowmill_io::{AlignedBuffer, BLOCK_BYTES};
use rowmill_rows::RowKey;

use super::geometry::Geometry;
use super::trailer::{self, Expected};

/// The image of a segment, laid out as on the device.
#[derive(Debug)]
pub(super) struct TailBuffer {
    sequence: u64,
    rows: u32,
    image: AlignedBuffer,
}

impl TailBuffer {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self { sequence: 0, rows: 0, image: AlignedBuffer::new(geometry.place_bytes()) }
    }

    /// Begin segment `sequence`.
    pub(super) fn start(&mut self, sequence: u64) {
        self.sequence = sequence;
        self.rows = 0;
    }

    /// Append a row and return its index.
    pub(super) fn push(&mut self, geometry: &Geometry, key: RowKey, row: &[u8]) -> u32 {
        let index = self.rows;
        assert!(index < geometry.rows_per_segment(), "a full segment is sealed before the next row");
        let at = geometry.offset_of(index);
        self.image[at..at + geometry.stride()].copy_from_slice(row);
        trailer::put_key(&mut self.image[geometry.trailer_offset()..], geometry, index, key);
        self.rows = index + 1;
        index
    }

    /// Row `index` of segment `sequence` and its key. `None` when the buffer holds another segment or fewer
    /// rows.
    pub(super) fn row(&self, geometry: &Geometry, sequence: u64, index: u32) -> Option<(RowKey, &[u8])> {
        if self.sequence != sequence || index >= self.rows {
            return None;
        }
        let at = geometry.offset_of(index);
        let key = trailer::key(&self.image[geometry.trailer_offset()..], geometry, index);
        Some((key, &self.image[at..at + geometry.stride()]))
    }

    /// Whether the buffer still holds segment `sequence`.
    pub(super) fn holds(&self, sequence: u64) -> bool {
        self.sequence == sequence
    }

    /// Zero the bytes behind the last row, which an earlier segment left, so that equal rows give equal
    /// blocks.
    pub(super) fn clear_rest(&mut self, geometry: &Geometry) {
        let rows_end = match self.rows {
            0 => 0,
            rows => geometry.offset_of(rows - 1) + geometry.stride(),
        };
        let used = geometry.used_blocks(self.rows) as usize * BLOCK_BYTES;
        self.image[rows_end..used].fill(0);
    }

    /// Checksums of the blocks in use.
    pub(super) fn checksums(&self, geometry: &Geometry) -> Box<[u32]> {
        (0..)
            .zip(self.data(geometry).chunks_exact(BLOCK_BYTES))
            .map(|(block, content)| trailer::block_checksum(geometry, self.sequence, block, content))
            .collect()
    }

    /// Complete the trailer.
    pub(super) fn seal(&mut self, geometry: &Geometry, group: u32, checksums: &[u32]) {
        let expected = Expected { group, sequence: self.sequence, rows: self.rows };
        trailer::seal(&mut self.image[geometry.trailer_offset()..], geometry, expected, checksums);
    }

    /// The data blocks in use.
    pub(super) fn data(&self, geometry: &Geometry) -> &[u8] {
        &self.image[..geometry.used_blocks(self.rows) as usize * BLOCK_BYTES]
    }

    /// The pieces to write, as (offset within the place, blocks): one piece for a full segment, else the
    /// blocks in use and the trailer.
    pub(super) fn pieces(&self, geometry: &Geometry) -> [(usize, &[u8]); 2] {
        let used = self.data(geometry).len();
        let trailer = geometry.trailer_offset();
        if used == trailer {
            [(0, &self.image), (self.image.len(), &[])]
        } else {
            [(0, &self.image[..used]), (trailer, &self.image[trailer..])]
        }
    }
}
