//! Reads a whole segment from the device and checks every block and key, for cleaning and for `fsck`.

use rowmill_io::{BLOCK_BYTES, Span};
use rowmill_rows::RowKey;

use super::counters::add;
use super::error::SegmentPart;
use super::reader::SegmentName;
use super::segment_table::Whereabouts;
use super::trailer::{self, Expected};
use super::{LogError, Shared};

/// Checksums of the blocks in use, and the keys of the rows.
struct Contents {
    checksums: Box<[u32]>,
    keys: Vec<RowKey>,
}

impl Shared {
    /// See [`super::Log::segment_rows`].
    pub(super) fn segment_rows(
        &self,
        place: u32,
        visit: &mut dyn FnMut(u32, RowKey, &[u8]),
    ) -> Result<(), LogError> {
        let number = self.geometry.number(place, 0);
        let Whereabouts::Device { sequence, rows, .. } = self.table.read().find(place) else {
            return Err(LogError::Moved { group: self.group, number });
        };
        let result = self.scan(SegmentName { place, sequence }, rows, visit);
        if result.is_err() {
            self.table.write().damaged(place, sequence);
        }
        result
    }

    fn scan(
        &self,
        name: SegmentName,
        rows: u32,
        visit: &mut dyn FnMut(u32, RowKey, &[u8]),
    ) -> Result<(), LogError> {
        let geometry = &self.geometry;
        let place = name.place;
        let Contents { checksums, keys } = self.contents(name, rows)?;
        let unit = geometry.blocks_per_row();
        let rows_per_unit = geometry.rows_per_block();
        let spans: Vec<Span> = (0..geometry.used_blocks(rows) / unit)
            .map(|at| Span {
                offset: geometry.place_offset(place) + u64::from(at * unit) * BLOCK_BYTES as u64,
                bytes: unit as usize * BLOCK_BYTES,
            })
            .collect();
        let mut result = Ok(());
        self.device.read(&spans, &mut |position, blocks| {
            let first = position as u32 * unit;
            match self.checked(name, first, &checksums[first as usize..][..unit as usize], blocks) {
                Ok(blocks) => {
                    let index = position as u32 * rows_per_unit;
                    for index in index..(index + rows_per_unit).min(rows) {
                        let at = geometry.offset_in_block(index);
                        let row = &blocks[at..at + geometry.stride()];
                        visit(geometry.number(place, index), keys[index as usize], row);
                    }
                }
                Err(error) if result.is_ok() => result = Err(error),
                Err(_) => {}
            }
        });
        add(&self.counters.blocks_read, spans.len() * unit as usize);
        result
    }

    fn contents(&self, name: SegmentName, rows: u32) -> Result<Contents, LogError> {
        let geometry = &self.geometry;
        let bytes = geometry.trailer_blocks() as usize * BLOCK_BYTES;
        let expected = Expected { group: self.group, sequence: name.sequence, rows };
        let mut contents = None;
        self.device.read(&[geometry.trailer_span(name.place, bytes)], &mut |_, trailer| {
            contents = Some(trailer.map_err(|cause| self.unreadable(cause)).and_then(|trailer| {
                let checksums = trailer::checksums(trailer, geometry, expected)
                    .and_then(|checksums| trailer::check_keys(trailer, geometry, rows).map(|()| checksums))
                    .map_err(|fault| self.corrupt(name, SegmentPart::Trailer, fault))?;
                let keys = (0..rows).map(|index| trailer::key(trailer, geometry, index)).collect();
                Ok(Contents { checksums, keys })
            }));
        });
        add(&self.counters.blocks_read, geometry.trailer_blocks() as usize);
        contents.expect("a device delivers every span")
    }
}
