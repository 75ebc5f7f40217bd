//! Rows back from the log: from the tail buffers where they are still in memory, else from the device,
//! where every block is checked before a byte of it is delivered.

use std::sync::Arc;

use rowmill_io::{BLOCK_BYTES, DeviceError, Span};
use rowmill_rows::RowKey;

use super::counters::add;
use super::error::{Fault, Part, RowResult};
use super::segment_table::{OnDevice, Whereabouts};
use super::trailer::{self, Expected};
use super::{LogError, Shared};

/// What one call of `read` works with, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Positions of wanted rows that are nowhere.
    moved: Vec<u32>,
    tail: Vec<InTail>,
    blocks: Vec<InBlock>,
    segments: Vec<SegmentRead>,
    spans: Vec<Span>,
    /// What every span is, in the order of the spans.
    reads: Vec<SpanRead>,
    row: Vec<u8>,
}

/// Scratches kept when nobody reads, and the entries each may keep.
const SCRATCHES_KEPT: usize = 8;
const ENTRIES_KEPT: usize = 8192;

#[derive(Clone, Copy, Debug)]
struct InTail {
    position: u32,
    buffer: u32,
    sequence: u64,
}

#[derive(Clone, Copy, Debug)]
struct InBlock {
    /// First block of the row, counted from the beginning of the file.
    block: u64,
    position: u32,
    /// First byte of the row in its block.
    offset: u32,
}

#[derive(Debug)]
struct SegmentRead {
    place: u32,
    sequence: u64,
    rows: u32,
    checksums: Checksums,
}

/// What is known of a segment's blocks.
#[derive(Debug)]
enum Checksums {
    Known(Arc<[u32]>),
    /// To be read from the trailer.
    Unread,
    /// The trailer cannot be read or trusted.
    Lost(LogError),
    /// The segment was freed while this call was under way.
    Freed,
}

#[derive(Clone, Copy, Debug)]
struct SpanRead {
    /// Position of the segment in `segments`.
    segment: u32,
    /// First block within the segment.
    block: u32,
    /// First row in `blocks` that lies in the span; they end where those of the next span begin.
    first: u32,
}

impl Scratch {
    fn clear(&mut self) {
        self.moved.clear();
        self.tail.clear();
        self.blocks.clear();
        self.segments.clear();
        self.spans.clear();
        self.reads.clear();
    }

    fn shrink(&mut self) {
        self.clear();
        self.moved.shrink_to(ENTRIES_KEPT);
        self.tail.shrink_to(ENTRIES_KEPT);
        self.blocks.shrink_to(ENTRIES_KEPT);
        self.segments.shrink_to(ENTRIES_KEPT);
        self.spans.shrink_to(ENTRIES_KEPT);
        self.reads.shrink_to(ENTRIES_KEPT);
    }

    fn bytes(&self) -> usize {
        self.moved.capacity() * size_of::<u32>()
            + self.tail.capacity() * size_of::<InTail>()
            + self.blocks.capacity() * size_of::<InBlock>()
            + self.segments.capacity() * size_of::<SegmentRead>()
            + self.spans.capacity() * size_of::<Span>()
            + self.reads.capacity() * size_of::<SpanRead>()
            + self.row.capacity()
    }
}

impl Shared {
    /// See [`super::Log::read`].
    pub(super) fn read(&self, wanted: &[(u32, RowKey)], deliver: &mut dyn FnMut(usize, RowResult<'_>)) {
        let mut scratch = self.scratch.lock().pop().unwrap_or_default();
        self.locate(wanted, &mut scratch);
        self.deliver_from_tail(wanted, &mut scratch, deliver);
        for position in &scratch.moved {
            let (number, _) = wanted[*position as usize];
            deliver(*position as usize, Err(LogError::Moved { group: self.group, number }));
        }
        if !scratch.blocks.is_empty() {
            scratch.blocks.sort_unstable_by_key(|row| (row.block, row.position));
            self.plan(&mut scratch);
            self.learn_checksums(&mut scratch.segments);
            self.deliver_from_device(wanted, &scratch, deliver);
        }
        scratch.shrink();
        let mut kept = self.scratch.lock();
        if kept.len() < SCRATCHES_KEPT {
            kept.push(scratch);
        }
    }

    /// Memory of the scratches nobody uses.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.scratch.lock().iter().map(Scratch::bytes).sum()
    }

    fn locate(&self, wanted: &[(u32, RowKey)], scratch: &mut Scratch) {
        let table = self.table.read();
        for (position, (number, _)) in (0..).zip(wanted) {
            let (place, index) = self.geometry.locate(*number);
            match table.find(place, index) {
                Whereabouts::Device => scratch.blocks.push(self.in_block(place, index, position)),
                Whereabouts::Tail { buffer, sequence } => {
                    scratch.tail.push(InTail { position, buffer, sequence });
                }
                Whereabouts::Nowhere => scratch.moved.push(position),
            }
        }
    }

    fn in_block(&self, place: u32, index: u32, position: u32) -> InBlock {
        let block = u64::from(place) * u64::from(self.geometry.place_blocks());
        InBlock {
            block: block + u64::from(self.geometry.block_of(index)),
            position,
            offset: self.geometry.offset_in_block(index) as u32,
        }
    }

    /// Deliver what the buffers hold; rows whose segment reached the device since join those to be read.
    fn deliver_from_tail(
        &self,
        wanted: &[(u32, RowKey)],
        scratch: &mut Scratch,
        deliver: &mut dyn FnMut(usize, RowResult<'_>),
    ) {
        let Scratch { tail, row, blocks, moved, .. } = scratch;
        let mut hits = 0;
        while let Some(InTail { position, buffer, sequence }) = tail.pop() {
            let (number, key) = wanted[position as usize];
            let (place, index) = self.geometry.locate(number);
            let image = self.tail.buffer(buffer).read();
            match image.row(&self.geometry, sequence, index) {
                Some((owner, bytes)) if owner == key => {
                    row.clear();
                    row.extend_from_slice(bytes);
                    // Not under the buffer's lock: the caller may append from `deliver`.
                    drop(image);
                    hits += 1;
                    deliver(position as usize, Ok(row));
                }
                None if !image.holds(sequence) => match self.table.read().find(place, index) {
                    Whereabouts::Device => blocks.push(self.in_block(place, index, position)),
                    Whereabouts::Tail { buffer, sequence } => {
                        tail.push(InTail { position, buffer, sequence });
                    }
                    Whereabouts::Nowhere => moved.push(position),
                },
                _ => moved.push(position),
            }
        }
        add(&self.counters.tail_hits, hits);
    }

    /// One span for every block (or wide row) that holds wanted rows, and the segments they lie in.
    fn plan(&self, scratch: &mut Scratch) {
        let place_blocks = u64::from(self.geometry.place_blocks());
        let span_bytes = self.geometry.blocks_per_row() as usize * BLOCK_BYTES;
        let table = self.table.read();
        let mut last_block = None;
        for (first, row) in (0..).zip(&scratch.blocks) {
            if last_block == Some(row.block) {
                continue;
            }
            last_block = Some(row.block);
            let place = (row.block / place_blocks) as u32;
            if scratch.segments.last().is_none_or(|segment| segment.place != place) {
                scratch.segments.push(SegmentRead::of(place, table.on_device(place)));
            }
            scratch.spans.push(Span { offset: row.block * BLOCK_BYTES as u64, bytes: span_bytes });
            scratch.reads.push(SpanRead {
                segment: scratch.segments.len() as u32 - 1,
                block: (row.block % place_blocks) as u32,
                first,
            });
        }
    }

    /// Read the trailers of the segments whose checksums are not in memory.
    fn learn_checksums(&self, segments: &mut [SegmentRead]) {
        let mut unread: Vec<&mut SegmentRead> =
            segments.iter_mut().filter(|segment| matches!(segment.checksums, Checksums::Unread)).collect();
        if unread.is_empty() {
            return;
        }
        let head_bytes = trailer::head_bytes(self.geometry.data_blocks() as usize);
        let spans: Vec<Span> =
            unread.iter().map(|segment| self.geometry.trailer_span(segment.place, head_bytes)).collect();
        self.device.read(&spans, &mut |position, head| {
            let segment = &mut *unread[position];
            segment.checksums = match self.checked_head(segment, head) {
                Ok(checksums) => Checksums::Known(checksums),
                Err(error) => Checksums::Lost(error),
            };
        });
        add(&self.counters.blocks_read, spans.iter().map(|span| span.bytes / BLOCK_BYTES).sum());
        let mut table = self.table.write();
        for segment in unread {
            if let Checksums::Known(checksums) = &segment.checksums {
                table.learned(segment.place, segment.sequence, Arc::clone(checksums));
            }
        }
    }

    fn checked_head(
        &self,
        segment: &SegmentRead,
        head: Result<&[u8], DeviceError>,
    ) -> Result<Arc<[u32]>, LogError> {
        let head = head.map_err(|cause| self.unreadable(cause))?;
        let expected = Expected { group: self.group, sequence: segment.sequence, rows: segment.rows };
        trailer::checksums(head, &self.geometry, expected)
            .map_err(|fault| self.corrupt(segment.into(), Part::Trailer, fault))
    }

    fn deliver_from_device(
        &self,
        wanted: &[(u32, RowKey)],
        scratch: &Scratch,
        deliver: &mut dyn FnMut(usize, RowResult<'_>),
    ) {
        let stride = self.geometry.stride();
        self.device.read(&scratch.spans, &mut |position, blocks| {
            let read = scratch.reads[position];
            let end =
                scratch.reads.get(position + 1).map_or(scratch.blocks.len(), |next| next.first as usize);
            let rows = &scratch.blocks[read.first as usize..end];
            let segment = &scratch.segments[read.segment as usize];
            let checked = match &segment.checksums {
                Checksums::Known(checksums) => self.checked(segment.into(), checksums, read.block, blocks),
                Checksums::Lost(error) => Err(error.clone()),
                Checksums::Freed | Checksums::Unread => {
                    Err(LogError::Moved { group: self.group, number: wanted[rows[0].position as usize].0 })
                }
            };
            for row in rows {
                let at = row.offset as usize;
                let bytes = checked.as_ref().map(|blocks| &blocks[at..at + stride]);
                deliver(row.position as usize, bytes.map_err(LogError::clone));
            }
        });
        add(&self.counters.rows_read, scratch.blocks.len());
        add(&self.counters.blocks_read, scratch.spans.len() * self.geometry.blocks_per_row() as usize);
    }

    /// The blocks from `first` on, once their checksums have proved right.
    pub(super) fn checked<'a>(
        &self,
        segment: SegmentName,
        checksums: &[u32],
        first: u32,
        blocks: Result<&'a [u8], DeviceError>,
    ) -> Result<&'a [u8], LogError> {
        let blocks = blocks.map_err(|cause| self.unreadable(cause))?;
        for (block, content) in (first..).zip(blocks.chunks_exact(BLOCK_BYTES)) {
            let expected = checksums[block as usize];
            let found = trailer::block_checksum(&self.geometry, segment.sequence, block, content);
            if found != expected {
                return Err(self.corrupt(segment, Part::Block(block), Fault::Checksum { expected, found }));
            }
        }
        Ok(blocks)
    }

    pub(super) fn unreadable(&self, cause: DeviceError) -> LogError {
        LogError::Read { group: self.group, cause: Arc::new(cause) }
    }

    pub(super) fn corrupt(&self, segment: SegmentName, part: Part, fault: Fault) -> LogError {
        add(&self.counters.corrupt, 1);
        let SegmentName { place, sequence } = segment;
        LogError::Corrupt { group: self.group, place, sequence, part, fault }
    }
}

/// A segment, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentName {
    pub(super) place: u32,
    pub(super) sequence: u64,
}

impl From<&SegmentRead> for SegmentName {
    fn from(segment: &SegmentRead) -> Self {
        Self { place: segment.place, sequence: segment.sequence }
    }
}

impl SegmentRead {
    fn of(place: u32, segment: Option<OnDevice>) -> Self {
        match segment {
            Some(OnDevice { sequence, rows, checksums }) => Self {
                place,
                sequence,
                rows,
                checksums: checksums.map_or(Checksums::Unread, Checksums::Known),
            },
            None => Self { place, sequence: 0, rows: 0, checksums: Checksums::Freed },
        }
    }
}
