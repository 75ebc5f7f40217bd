//! Copies whole segments as bytes with every block checked, to copy a checkpoint elsewhere.

use std::sync::Arc;

use rowmill_io::{BLOCK_BYTES, Device, DeviceError, Span};

use super::error::{Damage, LogError, SegmentPart};
use super::geometry::Geometry;
use super::state::SegmentRecord;
use super::trailer::{self, Expected};

/// Reads the segments that a checkpoint names from the device of a log. The log itself may be open or not.
#[derive(Debug)]
pub struct SegmentCopier {
    device: Arc<dyn Device>,
    geometry: Geometry,
    group: u32,
}

impl SegmentCopier {
    /// A copier of segments of the log of `group` on `device`.
    pub fn new(device: Arc<dyn Device>, geometry: Geometry, group: u32) -> Self {
        Self { device, geometry, group }
    }

    /// The parts of a segment's place that hold data: the blocks in use, and the trailer.
    pub fn spans(geometry: &Geometry, segment: SegmentRecord) -> [Span; 2] {
        let bytes = geometry.used_blocks(segment.rows) as usize * BLOCK_BYTES;
        let trailer_bytes = geometry.trailer_blocks() as usize * BLOCK_BYTES;
        [
            Span { offset: geometry.place_offset(segment.place), bytes },
            geometry.trailer_span(segment.place, trailer_bytes),
        ]
    }

    /// The bytes of [`SegmentCopier::spans`], concatenated.
    ///
    /// # Errors
    /// [`LogError::Read`], or [`LogError::Corrupt`] when the bytes do not belong to that segment.
    pub fn copy(&self, segment: SegmentRecord) -> Result<Vec<u8>, LogError> {
        let geometry = &self.geometry;
        let [rows, trailer] = Self::spans(geometry, segment);
        let mut bytes = vec![0; rows.bytes + trailer.bytes];
        let blocks: Vec<Span> = [rows, trailer].into_iter().flat_map(blocks_of).collect();
        let mut result = Ok(());
        self.device.read(&blocks, &mut |position, block| match block {
            Ok(block) => bytes[position * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(block),
            Err(cause) => result = Err(self.unreadable(cause)),
        });
        result?;
        self.check(segment, &bytes[..rows.bytes], &bytes[rows.bytes..])?;
        Ok(bytes)
    }

    fn check(&self, segment: SegmentRecord, rows: &[u8], trailer: &[u8]) -> Result<(), LogError> {
        let geometry = &self.geometry;
        let SegmentRecord { place, sequence, rows: count } = segment;
        let corrupt = |part, fault| LogError::Corrupt { group: self.group, place, sequence, part, fault };
        let expected = Expected { group: self.group, sequence, rows: count };
        let checksums = trailer::checksums(trailer, geometry, expected)
            .and_then(|checksums| trailer::check_keys(trailer, geometry, count).map(|()| checksums))
            .map_err(|fault| corrupt(SegmentPart::Trailer, fault))?;
        for ((number, content), &expected) in (0..).zip(rows.chunks_exact(BLOCK_BYTES)).zip(&checksums) {
            let found = trailer::block_checksum(geometry, sequence, number, content);
            if found != expected {
                return Err(corrupt(SegmentPart::Block(number), Damage::Checksum { expected, found }));
            }
        }
        Ok(())
    }

    fn unreadable(&self, cause: DeviceError) -> LogError {
        LogError::Read { group: self.group, cause: Arc::new(cause) }
    }
}

fn blocks_of(span: Span) -> impl Iterator<Item = Span> {
    let block = move |at| Span { offset: span.offset + at as u64, bytes: BLOCK_BYTES };
    (0..span.bytes).step_by(BLOCK_BYTES).map(block)
}
