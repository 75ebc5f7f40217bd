//! The end of the log that is still in memory, and the thread that writes it.
//!
//! There is a fixed number of buffers. One per stream takes rows, sealed ones wait in order for the writer
//! thread, the rest are idle. Appending waits when no buffer is idle, so the device limits the rate. After a
//! write or sync has failed, nothing is written any more: the log is poisoned, and its buffers stay readable.
//!
//! Lock order: tail state, then segment table, then readers' stamps. The lock of a buffer is taken after the
//! tail state, and no other lock is taken under it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rowmill_io::DeviceError;
use rowmill_rows::RowKey;
use rowmill_sync::{Condvar, Mutex, MutexGuard, Poison, RwLock, panicked, ranks};

use super::counters::add;
use super::geometry::Geometry;
use super::segment_table::SegmentTable;
use super::tail_buffer::TailBuffer;
use super::{LogError, PoisonCause, Shared};

#[derive(Debug)]
pub(super) struct Tail {
    state: Mutex<State, ranks::LogTail>,
    /// A buffer became idle, a segment was written, or the log was poisoned.
    progress: Condvar,
    /// A segment was sealed, or the writer must end.
    work: Condvar,
    /// Whether a writer thread exists. If not, callers that wait write segments themselves.
    threaded: bool,
    buffers: Box<[RwLock<TailBuffer, ranks::LogBuffer>]>,
}

/// Rows of similar age share segments, so that whole segments become free together. Rows that cleaning moved
/// have not changed for long and will not change soon. Measured with a tenth of the rows taking 90 % of the
/// changes, at 1.3 times the live bytes: 0.7 rows moved per row appended, against 2.1 with one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// Rows that have changed.
    Changed,
    /// Rows that cleaning moves.
    Moved,
}

const STREAMS: [Stream; 2] = [Stream::Changed, Stream::Moved];

#[derive(Debug, Default)]
struct State {
    /// The segments that take rows, by stream.
    open: [Option<Open>; STREAMS.len()],
    idle: Vec<u32>,
    sealed: VecDeque<Open>,
    /// Number of segments sealed and written so far. Segments are written in the order in which they were
    /// sealed.
    segments_sealed: u64,
    segments_written: u64,
    poison: Option<Arc<PoisonCause>>,
    ending: bool,
    /// The oldest sealed segment is being written, by the writer thread or a caller.
    writing: bool,
    /// Free places at the last count. By now there may be more, but not fewer.
    free_places: u32,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    buffer: u32,
    place: u32,
    rows: u32,
}

impl Tail {
    pub(super) fn new(geometry: &Geometry, buffers: usize, threaded: bool) -> Self {
        Self {
            state: Mutex::new(State { idle: (0..buffers as u32).rev().collect(), ..State::default() }),
            progress: Condvar::new(),
            work: Condvar::new(),
            threaded,
            buffers: (0..buffers).map(|_| RwLock::new(TailBuffer::new(geometry))).collect(),
        }
    }

    /// The buffer with this number.
    pub(super) fn buffer(&self, buffer: u32) -> &RwLock<TailBuffer, ranks::LogBuffer> {
        &self.buffers[buffer as usize]
    }

    /// Memory of the buffers, in bytes.
    pub(super) fn bytes(&self, geometry: &Geometry) -> usize {
        self.buffers.len() * geometry.place_bytes()
    }

    /// Ask the writer to end after its current segment. Other sealed segments stay unwritten.
    pub(super) fn end(&self) {
        self.state.lock().ending = true;
        self.work.notify_all();
    }
}

impl Shared {
    pub(super) fn append(&self, stream: Stream, keep: u32, key: RowKey, row: &[u8]) -> Result<u32, LogError> {
        assert_eq!(row.len(), self.geometry.stride(), "rows of a log have one length");
        let mut state = self.tail.state.lock();
        self.refuse_if_short(&mut state, keep)?;
        let open;
        (state, open) = self.open_segment(state, stream)?;
        let index = self.tail.buffer(open.buffer).write().push(&self.geometry, key, row);
        self.live.retain(open.place, 1);
        let (place, rows) = (open.place, index + 1);
        state.open[stream as usize] = Some(Open { rows, ..open });
        if rows == self.geometry.rows_per_segment() {
            self.seal(&mut state, stream);
        }
        add(&self.counters.rows_appended, 1);
        let number = self.geometry.number(place, index);
        if let Some(holders) = self.holders.get() {
            holders.name(number);
        }
        Ok(number)
    }

    /// The open segment of a stream. Waits until a buffer for it is idle.
    fn open_segment<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        stream: Stream,
    ) -> Result<(MutexGuard<'a, State>, Open), LogError> {
        loop {
            self.refuse_if_poisoned(&state)?;
            if let Some(open) = state.open[stream as usize] {
                return Ok((state, open));
            }
            let Some(buffer) = state.idle.pop() else {
                if self.tail.buffers.is_empty() {
                    return Err(LogError::ReadOnly { group: self.group });
                }
                if state.sealed.is_empty() {
                    // The other stream holds the only buffer; without sealing it, this would wait forever.
                    self.seal_all(&mut state);
                }
                state = self.await_writer(state);
                continue;
            };
            let mut table = self.table.write();
            let Some((place, sequence)) = table.open(buffer, &self.live, &self.readings) else {
                state.idle.push(buffer);
                return Err(self.full(&table));
            };
            state.free_places = table.free_places();
            drop(table);
            self.tail.buffer(buffer).write().start(sequence);
            state.open[stream as usize] = Some(Open { buffer, place, rows: 0 });
        }
    }

    /// Refuse a row if that would leave fewer than `keep` free places.
    fn refuse_if_short(&self, state: &mut State, keep: u32) -> Result<(), LogError> {
        if state.free_places >= keep {
            return Ok(());
        }
        self.refuse_if_poisoned(state)?;
        let mut table = self.table.write();
        table.settle(&self.readings);
        state.free_places = table.free_places();
        if state.free_places >= keep { Ok(()) } else { Err(self.full(&table)) }
    }

    fn full(&self, table: &SegmentTable) -> LogError {
        let (used, limit) = table.row_numbers();
        LogError::Full { group: self.group, used, limit }
    }

    fn refuse_if_poisoned(&self, state: &State) -> Result<(), LogError> {
        match &state.poison {
            Some(cause) => Err(LogError::Poisoned { group: self.group, cause: Arc::clone(cause) }),
            None => Ok(()),
        }
    }

    /// Seal the open segments, if any, for the writer.
    fn seal_all(&self, state: &mut State) {
        for stream in STREAMS {
            self.seal(state, stream);
        }
    }

    fn seal(&self, state: &mut State, stream: Stream) {
        // A segment is opened for a row, so it is never empty.
        let Some(open) = state.open[stream as usize].take() else { return };
        self.table.write().sealed(open.place, open.rows, &self.live, &self.readings);
        state.segments_sealed += 1;
        state.sealed.push_back(open);
        self.tail.work.notify_one();
    }

    /// Seal the open segments and start a new epoch.
    pub(super) fn cut(&self) -> u64 {
        let mut state = self.tail.state.lock();
        self.seal_all(&mut state);
        // Still under the tail's lock, so that a row appended after the cut belongs to the new epoch.
        self.table.write().cut()
    }

    /// Seal the open segments and wait until all sealed ones are written.
    pub(super) fn flush(&self) -> Result<(), LogError> {
        let mut state = self.tail.state.lock();
        self.seal_all(&mut state);
        let sealed = state.segments_sealed;
        loop {
            self.refuse_if_poisoned(&state)?;
            if state.segments_written >= sealed {
                return Ok(());
            }
            state = self.await_writer(state);
        }
    }

    /// Wait until the segments that are sealed now are written, or the log is poisoned.
    pub(super) fn await_written(&self) {
        let mut state = self.tail.state.lock();
        let sealed = state.segments_sealed;
        while state.segments_written < sealed && state.poison.is_none() {
            state = self.await_writer(state);
        }
    }

    /// Make all written segments durable.
    pub(super) fn sync(&self) -> Result<(), LogError> {
        self.refuse_if_poisoned(&self.tail.state.lock())?;
        let written = self.table.read().segments_written();
        if let Err(cause) = self.device.sync() {
            return Err(self.poison(cause));
        }
        self.table.write().synced(written);
        Ok(())
    }

    /// Refuse all writes from now on. The first cause is kept.
    fn poison(&self, cause: impl Into<PoisonCause>) -> LogError {
        let mut state = self.tail.state.lock();
        let cause = Arc::clone(state.poison.get_or_insert_with(|| Arc::new(cause.into())));
        self.tail.progress.notify_all();
        self.tail.work.notify_all();
        LogError::Poisoned { group: self.group, cause }
    }

    /// Refuse rows and stop writing. When this returns, no write is in progress.
    pub(super) fn close(&self) {
        self.poison(PoisonCause::Closed);
        let mut state = self.tail.state.lock();
        while state.writing {
            state = self.tail.progress.wait(state);
        }
    }

    /// The writer thread: write sealed segments in order until asked to end or a write fails.
    pub(super) fn write_sealed_segments(&self, poison: &Poison) {
        let name = format!("the log writer thread of group {}", self.group);
        let written = poison.catch(&name, || {
            while let Some(next) = self.next_sealed() {
                if !self.write_sealed(next) {
                    return;
                }
            }
        });
        if let Err(cause) = written {
            self.poison(PoisonCause::Panic(cause));
            self.done_writing();
        }
    }

    /// See [`super::Log::write_one`].
    pub(super) fn write_one(&self) -> bool {
        if self.tail.threaded {
            return false;
        }
        let next = {
            let mut state = self.tail.state.lock();
            if state.writing || state.poison.is_some() {
                return false;
            }
            let Some(next) = state.sealed.front().copied() else { return false };
            state.writing = true;
            next
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.write_sealed(next))) {
            let name = format!("writing the log of group {}", self.group);
            self.poison(PoisonCause::Panic(panicked(&name, &*panic)));
            self.done_writing();
            resume_unwind(panic);
        }
        true
    }

    fn done_writing(&self) {
        self.tail.state.lock().writing = false;
        self.tail.progress.notify_all();
    }

    /// Wait for progress of the writer thread; without one, write a segment here.
    fn await_writer<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if self.tail.threaded || state.writing {
            return self.tail.progress.wait(state);
        }
        drop(state);
        self.write_one();
        self.tail.state.lock()
    }

    /// Write the oldest sealed segment. Returns false when this poisoned the log.
    fn write_sealed(&self, segment: Open) -> bool {
        let written = self.write_segment(segment);
        let succeeded = written.is_ok();
        match written {
            Ok(checksums) => {
                self.table.write().written(segment.place, checksums, &self.readings);
                let mut state = self.tail.state.lock();
                state.sealed.pop_front();
                state.segments_written += 1;
                state.idle.push(segment.buffer);
            }
            Err(cause) => {
                self.poison(cause);
            }
        }
        self.done_writing();
        succeeded
    }

    fn next_sealed(&self) -> Option<Open> {
        let mut state = self.tail.state.lock();
        loop {
            if state.ending || state.poison.is_some() {
                return None;
            }
            if let Some(next) = state.sealed.front().copied() {
                state.writing = true;
                return Some(next);
            }
            state = self.tail.work.wait(state);
        }
    }

    fn write_segment(&self, segment: Open) -> Result<Box<[u32]>, DeviceError> {
        let buffer = self.tail.buffer(segment.buffer);
        buffer.write().clear_rest(&self.geometry);
        // Readers continue to read the buffer while checksums are computed and the device writes.
        let checksums = buffer.read().checksums(&self.geometry);
        buffer.write().seal(&self.geometry, self.group, &checksums);
        let sealed = buffer.read();
        let place = self.geometry.place_offset(segment.place);
        for (offset, blocks) in sealed.pieces(&self.geometry) {
            if !blocks.is_empty() {
                self.device.write(place + offset as u64, blocks)?;
                add(&self.counters.bytes_written, blocks.len());
            }
        }
        self.counters.segments_written.fetch_add(1, Ordering::Relaxed);
        Ok(checksums)
    }
}
