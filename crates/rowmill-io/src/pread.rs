//! Reads one at a time through `pread`, used where `io_uring` is not available.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use crate::read_plan::{MERGED_BYTES_MAX, ReadPlan};
use crate::{AlignedBuffer, BLOCK_BYTES, DeviceError, ReadResult, Span};

struct ThreadBuffer {
    plan: ReadPlan,
    buffer: AlignedBuffer,
}

impl ThreadBuffer {
    fn new() -> Self {
        Self { plan: ReadPlan::default(), buffer: AlignedBuffer::new(MERGED_BYTES_MAX) }
    }
}

thread_local! {
    static BUFFER: RefCell<Option<ThreadBuffer>> = const { RefCell::new(None) };
}

/// Memory that a thread keeps for these reads, in bytes.
pub(crate) const BYTES_PER_THREAD: usize = MERGED_BYTES_MAX + ReadPlan::BYTES_MAX;

/// [`crate::Device::read`] for a file.
pub(crate) fn read(file: &File, name: &str, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
    // Taken out of the thread-local variable: a `deliver` that reads allocates a buffer of its own.
    let mut thread = BUFFER.take().unwrap_or_else(ThreadBuffer::new);
    let ThreadBuffer { plan, buffer } = &mut thread;
    plan.start(spans);
    while let Some(run) = plan.next_run(spans) {
        if run.bytes > buffer.len() {
            let position = plan.wide_position(run);
            read_wide(file, name, spans[position], &mut |result| deliver(position, result));
            continue;
        }
        let blocks = &mut buffer[..run.bytes];
        let landed = read_exactly(file, run.offset, blocks).is_ok();
        for position in plan.positions(run) {
            let span = spans[position];
            if landed {
                let start = (span.offset - run.offset) as usize;
                deliver(position, Ok(&blocks[start..start + span.bytes]));
            } else {
                read_span(file, name, span, blocks, &mut |result| deliver(position, result));
            }
        }
    }
    BUFFER.set(Some(thread));
}

/// Read one span alone into the start of `buffer`, so that a neighbour's read error does not fail this span.
pub(crate) fn read_span(
    file: &File,
    name: &str,
    span: Span,
    buffer: &mut [u8],
    deliver: &mut dyn FnMut(ReadResult<'_>),
) {
    let blocks = &mut buffer[..span.bytes];
    let result = read_exactly(file, span.offset, blocks);
    deliver(match result {
        Ok(()) => Ok(blocks),
        Err(error) => Err(DeviceError::from_io("read", name, span.offset, span.bytes, error)),
    });
}

/// Read a span longer than any kept buffer, into a buffer that lives for this call.
pub(crate) fn read_wide(file: &File, name: &str, span: Span, deliver: &mut dyn FnMut(ReadResult<'_>)) {
    read_span(file, name, span, &mut AlignedBuffer::new(span.bytes), deliver);
}

/// Fill `blocks` from `offset`. Short reads are continued; the end of the file is an error.
fn read_exactly(file: &File, mut offset: u64, mut blocks: &mut [u8]) -> io::Result<()> {
    while !blocks.is_empty() {
        match file.read_at(blocks, offset) {
            // A direct read must continue at a block boundary. Fewer bytes than a block remain only at the
            // end of the file.
            Ok(count) if count < BLOCK_BYTES => {
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "the span extends beyond the end of the file",
                ));
            }
            Ok(count) => {
                let whole = count / BLOCK_BYTES * BLOCK_BYTES;
                blocks = &mut blocks[whole..];
                offset += whole as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
