//! Reads rows from the tail buffers while they are in memory, else from the device. Every block from the
//! device is checked before any byte of it is delivered.
//!
//! A batch is sorted by row number, which is the order on the device, so one pass reads every segment and
//! every block once.

use std::ops::Range;
use std::sync::Arc;

use rowmill_io::{BLOCK_BYTES, DeviceError, Span};
use rowmill_rows::RowKey;

use super::counters::add;
use super::error::{Damage, RowResult, SegmentPart};
use super::segment_table::Whereabouts;
use super::trailer::{self, Expected};
use super::{LogError, Shared};

/// How many idle scratches are kept, and how many entries each of their lists may keep.
const SCRATCHES_KEPT: usize = 8;
const ENTRIES_KEPT: usize = 8192;

/// Working lists of one call of `read`, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Row number (upper half) and position (lower half) of every row still to be found.
    pending: Vec<u64>,
    /// Positions of rows that are neither in a buffer nor on the device.
    moved: Vec<u32>,
    tail: Vec<InTail>,
    rows: Vec<InBlock>,
    spans: Vec<Span>,
    /// What each span holds, in the order of the spans.
    reads: Vec<SpanRead>,
    /// The expected checksum of every block of every span.
    expected: Vec<u32>,
    unread: Vec<Unread>,
    lost: Vec<Lost>,
    row: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct InTail {
    position: u32,
    buffer: u32,
    sequence: u64,
}

/// A wanted row, and its first byte in the span that holds it.
#[derive(Clone, Copy, Debug)]
struct InBlock {
    position: u32,
    offset: u32,
}

/// A span to read: one block, or all blocks of one wide row.
#[derive(Clone, Copy, Debug)]
struct SpanRead {
    sequence: u64,
    /// First block within the segment.
    block: u32,
    /// The span's first row in `rows`. Its rows end where the rows of the next span begin.
    first: u32,
}

/// A segment whose trailer has to be read before its spans can be checked.
#[derive(Clone, Debug)]
struct Unread {
    name: SegmentName,
    rows: u32,
    spans: Range<usize>,
}

/// Spans that cannot be checked, because their trailer is unreadable or damaged.
#[derive(Debug)]
struct Lost {
    spans: Range<usize>,
    error: LogError,
}

/// Identifies a segment, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentName {
    pub(super) place: u32,
    pub(super) sequence: u64,
}

impl Scratch {
    /// Clear the lists of the last batch, and free memory that only an unusually large batch needs.
    fn clear(&mut self) {
        fn clear<T>(list: &mut Vec<T>) {
            list.clear();
            list.shrink_to(ENTRIES_KEPT);
        }
        clear(&mut self.pending);
        clear(&mut self.moved);
        clear(&mut self.tail);
        clear(&mut self.rows);
        clear(&mut self.spans);
        clear(&mut self.reads);
        clear(&mut self.expected);
        clear(&mut self.unread);
        clear(&mut self.lost);
    }

    fn bytes(&self) -> usize {
        fn bytes<T>(list: &Vec<T>) -> usize {
            list.capacity() * size_of::<T>()
        }
        bytes(&self.pending)
            + bytes(&self.moved)
            + bytes(&self.tail)
            + bytes(&self.rows)
            + bytes(&self.spans)
            + bytes(&self.reads)
            + bytes(&self.expected)
            + bytes(&self.unread)
            + bytes(&self.lost)
            + bytes(&self.row)
    }
}

impl Shared {
    /// See [`super::Reading::read`].
    pub(super) fn read(&self, wanted: &[(u32, RowKey)], deliver: &mut dyn FnMut(usize, RowResult<'_>)) {
        let mut scratch = self.scratch.lock().pop().unwrap_or_default();
        let order = (0..).zip(wanted).map(|(position, (number, _))| u64::from(*number) << 32 | position);
        scratch.pending.extend(order);
        // A buffer may reach the device before its rows are copied. Such rows need another round.
        while !scratch.pending.is_empty() {
            scratch.pending.sort_unstable();
            self.plan(&mut scratch);
            self.deliver_from_tail(wanted, &mut scratch, deliver);
            if !scratch.spans.is_empty() {
                self.learn_checksums(&mut scratch);
                self.deliver_from_device(&scratch, deliver);
            }
            for position in &scratch.moved {
                let (number, _) = wanted[*position as usize];
                deliver(*position as usize, Err(LogError::Moved { group: self.group, number }));
            }
            let late = std::mem::take(&mut scratch.pending);
            scratch.clear();
            scratch.pending = late;
        }
        let mut kept = self.scratch.lock();
        if kept.len() < SCRATCHES_KEPT {
            kept.push(scratch);
        }
    }

    /// Memory of the idle scratches, in bytes.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.scratch.lock().iter().map(Scratch::bytes).sum()
    }

    /// Locate the pending rows: in buffers, in blocks to be read, or gone.
    fn plan(&self, scratch: &mut Scratch) {
        let table = self.table.read();
        let mut segment = (u32::MAX, Whereabouts::Nowhere);
        let mut last_block = u32::MAX;
        for at in 0..scratch.pending.len() {
            let entry = scratch.pending[at];
            let (number, position) = ((entry >> 32) as u32, entry as u32);
            let (place, index) = self.geometry.locate(number);
            if place != segment.0 {
                segment = (place, table.find(place));
                last_block = u32::MAX;
            }
            match segment.1 {
                Whereabouts::Device { sequence, rows, checksums } if index < rows => {
                    let block = self.geometry.block_of(index);
                    if block != last_block {
                        last_block = block;
                        self.plan_span(scratch, SegmentName { place, sequence }, rows, checksums, block);
                    }
                    let offset = self.geometry.offset_in_block(index) as u32;
                    scratch.rows.push(InBlock { position, offset });
                }
                Whereabouts::Tail { buffer, sequence } => {
                    scratch.tail.push(InTail { position, buffer, sequence });
                }
                Whereabouts::Device { .. } | Whereabouts::Nowhere => scratch.moved.push(position),
            }
        }
        scratch.pending.clear();
    }

    /// Add the span that begins at `block` of a segment of `rows` rows to the reads.
    fn plan_span(
        &self,
        scratch: &mut Scratch,
        name: SegmentName,
        rows: u32,
        checksums: Option<&[u32]>,
        block: u32,
    ) {
        let blocks = self.geometry.blocks_per_row();
        let span = scratch.spans.len();
        if let Some(checksums) = checksums {
            scratch.expected.extend_from_slice(&checksums[block as usize..(block + blocks) as usize]);
        } else {
            scratch.expected.extend((0..blocks).map(|_| 0));
            match scratch.unread.last_mut() {
                Some(unread) if unread.name.place == name.place => unread.spans.end = span + 1,
                _ => scratch.unread.push(Unread { name, rows, spans: span..span + 1 }),
            }
        }
        scratch.spans.push(Span {
            offset: self.geometry.place_offset(name.place) + u64::from(block) * BLOCK_BYTES as u64,
            bytes: blocks as usize * BLOCK_BYTES,
        });
        scratch.reads.push(SpanRead { sequence: name.sequence, block, first: scratch.rows.len() as u32 });
    }

    /// Deliver rows from the buffers. Rows whose segment has left its buffer become pending again.
    fn deliver_from_tail(
        &self,
        wanted: &[(u32, RowKey)],
        scratch: &mut Scratch,
        deliver: &mut dyn FnMut(usize, RowResult<'_>),
    ) {
        let Scratch { tail, row, pending, moved, .. } = scratch;
        let mut hits = 0;
        for InTail { position, buffer, sequence } in tail.drain(..) {
            let (number, key) = wanted[position as usize];
            let (_, index) = self.geometry.locate(number);
            let image = self.tail.buffer(buffer).read();
            match image.row(&self.geometry, sequence, index) {
                Some((owner, bytes)) if owner == key => {
                    row.clear();
                    row.extend_from_slice(bytes);
                    // Release the buffer's lock first: the caller may append from `deliver`.
                    drop(image);
                    hits += 1;
                    deliver(position as usize, Ok(row));
                }
                None if !image.holds(sequence) => pending.push(u64::from(number) << 32 | u64::from(position)),
                _ => moved.push(position),
            }
        }
        add(&self.counters.tail_hits, hits);
    }

    /// Read the trailers of the segments whose checksums are not in memory.
    fn learn_checksums(&self, scratch: &mut Scratch) {
        if scratch.unread.is_empty() {
            return;
        }
        let Scratch { unread, lost, reads, expected, .. } = scratch;
        let blocks_per_row = self.geometry.blocks_per_row() as usize;
        let head_bytes = trailer::head_bytes(self.geometry.data_blocks() as usize);
        let heads: Vec<Span> =
            unread.iter().map(|unread| self.geometry.trailer_span(unread.name.place, head_bytes)).collect();
        let mut learned = Vec::with_capacity(heads.len());
        self.device.read(&heads, &mut |position, head| {
            let unread = &unread[position];
            match self.checked_head(unread, head) {
                Ok(checksums) => {
                    for span in unread.spans.clone() {
                        let block = reads[span].block as usize;
                        expected[span * blocks_per_row..][..blocks_per_row]
                            .copy_from_slice(&checksums[block..block + blocks_per_row]);
                    }
                    learned.push((unread.name, checksums));
                }
                Err(error) => lost.push(Lost { spans: unread.spans.clone(), error }),
            }
        });
        add(&self.counters.blocks_read, heads.iter().map(|head| head.bytes / BLOCK_BYTES).sum());
        let mut table = self.table.write();
        for (SegmentName { place, sequence }, checksums) in learned {
            table.learned(place, sequence, checksums);
        }
    }

    fn checked_head(
        &self,
        unread: &Unread,
        head: Result<&[u8], DeviceError>,
    ) -> Result<Box<[u32]>, LogError> {
        let head = head.map_err(|cause| self.unreadable(cause))?;
        let expected = Expected { group: self.group, sequence: unread.name.sequence, rows: unread.rows };
        trailer::checksums(head, &self.geometry, expected)
            .map_err(|fault| self.corrupt(unread.name, SegmentPart::Trailer, fault))
    }

    fn deliver_from_device(&self, scratch: &Scratch, deliver: &mut dyn FnMut(usize, RowResult<'_>)) {
        let Scratch { rows, spans, reads, expected, lost, .. } = scratch;
        let stride = self.geometry.stride();
        let blocks_per_row = self.geometry.blocks_per_row() as usize;
        self.device.read(spans, &mut |position, blocks| {
            let SpanRead { sequence, block, first } = reads[position];
            let end = reads.get(position + 1).map_or(rows.len(), |next| next.first as usize);
            let checked = if let Some(lost) = lost.iter().find(|lost| lost.spans.contains(&position)) {
                Err(lost.error.clone())
            } else {
                let place = (spans[position].offset / self.geometry.place_bytes() as u64) as u32;
                let expected = &expected[position * blocks_per_row..][..blocks_per_row];
                self.checked(SegmentName { place, sequence }, block, expected, blocks)
            };
            for row in &rows[first as usize..end] {
                let at = row.offset as usize;
                let bytes = checked.as_ref().map(|blocks| &blocks[at..at + stride]);
                deliver(row.position as usize, bytes.map_err(LogError::clone));
            }
        });
        add(&self.counters.rows_read, rows.len());
        add(&self.counters.blocks_read, spans.len() * blocks_per_row);
    }

    /// The blocks from `first` on, after verifying that they have the `expected` checksums.
    pub(super) fn checked<'a>(
        &self,
        segment: SegmentName,
        first: u32,
        expected: &[u32],
        blocks: Result<&'a [u8], DeviceError>,
    ) -> Result<&'a [u8], LogError> {
        let blocks = blocks.map_err(|cause| self.unreadable(cause))?;
        for ((block, &expected), content) in (first..).zip(expected).zip(blocks.chunks_exact(BLOCK_BYTES)) {
            let found = trailer::block_checksum(&self.geometry, segment.sequence, block, content);
            if found != expected {
                return Err(self.corrupt(
                    segment,
                    SegmentPart::Block(block),
                    Damage::Checksum { expected, found },
                ));
            }
        }
        Ok(blocks)
    }

    pub(super) fn unreadable(&self, cause: DeviceError) -> LogError {
        LogError::Read { group: self.group, cause: Arc::new(cause) }
    }

    pub(super) fn corrupt(&self, segment: SegmentName, part: SegmentPart, fault: Damage) -> LogError {
        add(&self.counters.corrupt, 1);
        let SegmentName { place, sequence } = segment;
        LogError::Corrupt { group: self.group, place, sequence, part, fault }
    }
}
