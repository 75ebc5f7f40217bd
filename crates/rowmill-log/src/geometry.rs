//! Where rows, checksums and keys lie inside a segment, and how a row number encodes a place and an index.

use rowmill_io::{BLOCK_BYTES, Span};

use super::trailer;

/// Row numbers have 31 bits: the index uses the top bit to mark resident rows.
pub const ROW_NUMBERS: u64 = 1 << 31;

/// The shape of every segment of one log.
///
/// A segment fills one *place* of the file: data blocks that hold only rows, followed by trailer blocks. A
/// row of at most one block never straddles two blocks. A wider row takes whole consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    stride: usize,
    rows_per_block: u32,
    blocks_per_row: u32,
    data_blocks: u32,
    trailer_blocks: u32,
    rows_per_segment: u32,
}

impl Geometry {
    /// The shape with the most rows of `stride` bytes that fit into `segment_bytes` together with their
    /// trailer. If not even one block (or one wide row) fits, a segment has exactly that.
    ///
    /// # Panics
    /// When `stride` is 0.
    pub fn new(stride: usize, segment_bytes: usize) -> Self {
        assert!(stride > 0, "a row has at least one byte");
        let rows_per_block = (BLOCK_BYTES / stride).max(1);
        let blocks_per_row = stride.div_ceil(BLOCK_BYTES);
        let trailer_blocks = |units: usize| {
            trailer::bytes(units * blocks_per_row, units * rows_per_block).div_ceil(BLOCK_BYTES)
        };
        let blocks = segment_bytes / BLOCK_BYTES;
        let mut units = (blocks / blocks_per_row).max(1);
        while units > 1 && units * blocks_per_row + trailer_blocks(units) > blocks {
            units -= 1;
        }
        Self {
            stride,
            rows_per_block: rows_per_block as u32,
            blocks_per_row: blocks_per_row as u32,
            data_blocks: (units * blocks_per_row) as u32,
            trailer_blocks: trailer_blocks(units) as u32,
            rows_per_segment: (units * rows_per_block) as u32,
        }
    }

    /// Bytes of a row.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Rows per block; 1 if a row takes several blocks.
    pub(crate) fn rows_per_block(&self) -> u32 {
        self.rows_per_block
    }

    /// Data bytes per row of a full segment. More than the stride if blocks end in bytes that no row fits
    /// into.
    pub fn packed_row_bytes(&self) -> usize {
        self.blocks_per_row as usize * BLOCK_BYTES / self.rows_per_block as usize
    }

    /// Blocks read to get one row.
    pub(crate) fn blocks_per_row(&self) -> u32 {
        self.blocks_per_row
    }

    /// Blocks of a segment that hold rows.
    pub fn data_blocks(&self) -> u32 {
        self.data_blocks
    }

    /// Blocks of a segment that hold checksums and keys.
    pub(crate) fn trailer_blocks(&self) -> u32 {
        self.trailer_blocks
    }

    /// Rows of a full segment.
    pub fn rows_per_segment(&self) -> u32 {
        self.rows_per_segment
    }

    /// Blocks from one place to the next.
    pub(crate) fn place_blocks(&self) -> u32 {
        self.data_blocks + self.trailer_blocks
    }

    /// Bytes from one place to the next.
    pub fn place_bytes(&self) -> usize {
        self.place_blocks() as usize * BLOCK_BYTES
    }

    /// Where the trailer begins within a place.
    pub(crate) fn trailer_offset(&self) -> usize {
        self.data_blocks as usize * BLOCK_BYTES
    }

    /// The number of places that `row_numbers` row numbers, at most [`ROW_NUMBERS`], can name.
    pub(crate) fn places_max(&self, row_numbers: u64) -> u32 {
        (row_numbers.min(ROW_NUMBERS) / u64::from(self.rows_per_segment)) as u32
    }

    /// The number of row `index` of the segment in `place`.
    pub fn number(&self, place: u32, index: u32) -> u32 {
        place * self.rows_per_segment + index
    }

    /// The place that `number` names, and the index of the row in it.
    pub(crate) fn locate(&self, number: u32) -> (u32, u32) {
        (number / self.rows_per_segment, number % self.rows_per_segment)
    }

    /// The first block, within the segment, of row `index`.
    pub(crate) fn block_of(&self, index: u32) -> u32 {
        index / self.rows_per_block * self.blocks_per_row
    }

    /// The first byte of row `index` within its (first) block.
    pub(crate) fn offset_in_block(&self, index: u32) -> usize {
        (index % self.rows_per_block) as usize * self.stride
    }

    /// The first byte of row `index` within its segment.
    pub(crate) fn offset_of(&self, index: u32) -> usize {
        self.block_of(index) as usize * BLOCK_BYTES + self.offset_in_block(index)
    }

    /// The number of data blocks that the first `rows` rows take.
    pub(crate) fn used_blocks(&self, rows: u32) -> u32 {
        rows.div_ceil(self.rows_per_block) * self.blocks_per_row
    }

    /// The first byte of `place` in the file.
    pub(crate) fn place_offset(&self, place: u32) -> u64 {
        u64::from(place) * self.place_bytes() as u64
    }

    /// The blocks of the file that hold the first `bytes` of the trailer of `place`.
    pub(crate) fn trailer_span(&self, place: u32, bytes: usize) -> Span {
        Span {
            offset: self.place_offset(place) + self.trailer_offset() as u64,
            bytes: bytes.next_multiple_of(BLOCK_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rows_of_a_power_of_two_fill_their_blocks() {
        let line = Geometry::new(64, 256 << 10);
        assert_eq!((line.rows_per_block, line.blocks_per_row), (64, 1));
        assert_eq!(line.place_bytes(), 256 << 10);
        assert_eq!((line.data_blocks, line.trailer_blocks), (53, 11));
        let page = Geometry::new(4096, 256 << 10);
        assert_eq!((page.data_blocks, page.trailer_blocks, page.rows_per_segment), (63, 1, 63));
    }

    #[test]
    fn wide_rows_take_whole_blocks() {
        let wide = Geometry::new(27 << 10, 256 << 10);
        assert_eq!((wide.blocks_per_row, wide.rows_per_segment, wide.data_blocks), (7, 9, 63));
        assert_eq!(wide.offset_of(2), 14 * BLOCK_BYTES);
        let single = Geometry::new(100 << 10, 16 << 10);
        assert_eq!((single.rows_per_segment, single.data_blocks, single.trailer_blocks), (1, 25, 1));
    }

    proptest! {
        #[test]
        fn no_row_straddles_a_block_and_numbers_round_trip(
            stride in 1usize..20_000, segment in 4usize..256, place in 0u32..1000, pick: u32,
        ) {
            let geometry = Geometry::new(stride, segment * BLOCK_BYTES);
            let index = pick % geometry.rows_per_segment;
            let offset = geometry.offset_of(index);
            prop_assert!(offset + stride <= geometry.trailer_offset());
            if stride <= BLOCK_BYTES {
                prop_assert_eq!(offset / BLOCK_BYTES, (offset + stride - 1) / BLOCK_BYTES);
            } else {
                prop_assert_eq!(offset % BLOCK_BYTES, 0);
            }
            prop_assert!(geometry.used_blocks(geometry.rows_per_segment) == geometry.data_blocks);
            prop_assert_eq!(geometry.locate(geometry.number(place, index)), (place, index));
            if geometry.rows_per_segment > geometry.rows_per_block {
                prop_assert!(geometry.place_bytes() <= segment * BLOCK_BYTES);
            }
        }
    }
}
