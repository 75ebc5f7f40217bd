//! The device log of one group: rows appended in segments, read back by row number, freed by segment.
//!
//! Appended rows collect in tail buffers; full segments are written by a thread of the log. Every row is
//! *retained* when appended and has to be *released* when neither the index nor a checkpoint being
//! written names it any more; a segment without retained rows becomes free. What may be written again,
//! and when, is decided in `segment_table`; what a block must look like, in `trailer`.
//!
//! The log does not know which rows are current, moves nothing by itself, and does not recover rows that
//! no checkpoint names: after a crash it begins at the state of the last checkpoint.

#![forbid(unsafe_code)]

mod counters;
mod error;
mod geometry;
mod live_counts;
mod reader;
mod reading;
mod retaining;
mod scan;
mod segment_copy;
mod segment_table;
mod state;
mod tail;
mod tail_buffer;
#[cfg(test)]
mod tests;
mod trailer;

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rowmill_io::{Device, Process, Span};
use rowmill_rows::RowKey;
use rowmill_sync::{Mutex, Poison, RwLock, ranks};

use counters::Counters;
use live_counts::LiveCounts;
use reader::Scratch;
use reading::Readings;
use segment_table::SegmentTable;
use tail::{Stream, Tail};

pub use counters::LogCounts;
pub use error::{Damage, LogError, PoisonCause, RowResult, SegmentPart};
pub use geometry::{Geometry, ROW_NUMBERS};
pub use retaining::Retaining;
pub use segment_copy::SegmentCopier;
pub use segment_table::{LogSpace, Victim};
pub use state::{LogState, SegmentRecord};

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Group of the log, for trailers and errors.
    pub group: u32,
    /// Shape of the segments; what it was when the log was made.
    pub geometry: Geometry,
    /// Segments held in memory on their way to the device; 4 let appending, cleaning and writing overlap.
    /// 0 opens the log for reading only.
    pub tail_buffers: usize,
    /// Whether a thread of the log writes them; else callers do, when they have to wait for a buffer and
    /// with [`Log::write_one`].
    pub writer_thread: bool,
    /// Memory for the checksums of segments; those not asked for lately are forgotten and read again.
    pub checksum_bytes_max: usize,
    /// A number that differs at every opening of the store, drawn at random.
    pub incarnation: u64,
    /// Row numbers of the log: [`ROW_NUMBERS`], or fewer in a test.
    pub row_numbers: u64,
    /// Set when the writer thread panics.
    pub poison: Arc<Poison>,
}

impl LogConfig {
    /// For a log that is only read.
    pub fn for_reading(group: u32, geometry: Geometry, checksum_bytes_max: usize) -> Self {
        Self {
            group,
            geometry,
            tail_buffers: 0,
            writer_thread: false,
            checksum_bytes_max,
            incarnation: 0,
            row_numbers: ROW_NUMBERS,
            poison: Arc::default(),
        }
    }
}

/// The device log of one group. All methods may be called from any thread.
pub struct Log {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    process: Process,
}

/// What the callers and the writer thread share.
struct Shared {
    group: u32,
    geometry: Geometry,
    /// All row numbers of the log.
    row_limit: u64,
    device: Arc<dyn Device>,
    tail: Tail,
    table: RwLock<SegmentTable, ranks::LogSegments>,
    live: LiveCounts,
    readings: Readings,
    scratch: Mutex<Vec<Scratch>, ranks::LogScratch>,
    /// Held while free places are given back to the file system: a second caller returns when they are.
    discards: Mutex<(), ranks::LogDiscards>,
    counters: Counters,
}

/// Protects a reader: row numbers looked up after this was made, and read before it is dropped, never
/// give another row's bytes. Not for keeping: freed places cannot be reused meanwhile.
#[must_use = "rows are protected only while this lives"]
pub struct Reading<'a> {
    log: &'a Log,
    stamp: u64,
}

impl Log {
    /// The log as the checkpoint `state` describes it. Afterwards retain every row of the
    /// index ([`Log::retaining`]), then call [`Log::loaded`].
    ///
    /// # Errors
    /// [`LogError::BadState`] when the state cannot be true or the file is too short for it; [`LogError::Thread`].
    pub fn open(device: Arc<dyn Device>, config: LogConfig, state: &LogState) -> Result<Self, LogError> {
        let LogConfig { group, geometry, tail_buffers, writer_thread, .. } = config;
        let bad_state = |reason| LogError::BadState { group, reason };
        // First of all, because the tables are as long as the file is said to be.
        let end = state.segments.iter().map(|segment| u64::from(segment.place) + 1).max().unwrap_or(0);
        let needed = u128::from(end) * geometry.place_bytes() as u128;
        if needed > u128::from(device.bytes()) {
            return Err(bad_state(format!("it needs {needed} bytes, the file has {}", device.bytes())));
        }
        let live = LiveCounts::default();
        let table = SegmentTable::new(&config, state, &live).map_err(bad_state)?;
        let shared = Arc::new(Shared {
            group,
            geometry,
            row_limit: table.row_numbers().1,
            device,
            tail: Tail::new(&geometry, tail_buffers, writer_thread),
            table: RwLock::new(table),
            live,
            readings: Readings::default(),
            scratch: Mutex::default(),
            discards: Mutex::default(),
            counters: Counters::default(),
        });
        let writer = if tail_buffers > 0 && writer_thread {
            let (name, shared) = (format!("rowmill-log-{group}"), Arc::clone(&shared));
            let thread = thread::Builder::new().name(name.clone());
            let spawned = thread.spawn(move || shared.write_sealed_segments(&config.poison));
            Some(spawned.map_err(|source| LogError::Thread { name, source: Arc::new(source) })?)
        } else {
            None
        };
        Ok(Self { shared, writer, process: Process::current() })
    }

    /// Append a row, retained once; its number. Waits while every tail buffer is on its way to the
    /// device.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], [`LogError::Full`] or [`LogError::ReadOnly`]; nothing is appended then.
    ///
    /// # Panics
    /// When `row` is not as long as the stride.
    pub fn append(&self, key: RowKey, row: &[u8]) -> Result<u32, LogError> {
        self.append_keeping(0, key, row)
    }

    /// As [`Log::append`], but refused when fewer than `places` places are free, which the next checkpoint needs.
    ///
    /// # Errors
    /// As [`Log::append`].
    ///
    /// # Panics
    /// As [`Log::append`].
    pub fn append_keeping(&self, places: u32, key: RowKey, row: &[u8]) -> Result<u32, LogError> {
        self.shared.append(Stream::Changed, places, key, row)
    }

    /// Append a row that cleaning moves, as [`Log::append`] does; such rows get segments of their own.
    ///
    /// # Errors
    /// As [`Log::append`].
    ///
    /// # Panics
    /// As [`Log::append`].
    pub fn append_moved(&self, key: RowKey, row: &[u8]) -> Result<u32, LogError> {
        self.shared.append(Stream::Moved, 0, key, row)
    }

    /// Take and write no more rows: when this returns, nothing is being written. Readers may go on.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Begin to read: call this before looking up the row numbers.
    pub fn reading(&self) -> Reading<'_> {
        Reading { log: self, stamp: self.shared.readings.begin() }
    }

    /// Begin to retain the rows of a loaded index.
    pub fn retaining(&self) -> Retaining<'_> {
        Retaining::new(self)
    }

    /// Count one holder less. Call it after the index has changed, under the lock that protects the
    /// index, so that nobody can look the number up afterwards.
    ///
    /// # Panics
    /// When the rows of that segment were released more often than retained.
    pub fn release(&self, number: u32) {
        let (place, _) = self.shared.geometry.locate(number);
        if self.shared.live.release(place) {
            self.shared.table.write().emptied(place, &self.shared.live, &self.shared.readings);
        }
    }

    /// Every row of the loaded index is retained: segments without any are free once the next
    /// checkpoint is durable.
    pub fn loaded(&self) {
        self.shared.table.write().loaded(&self.shared.live, &self.shared.readings);
    }

    /// Seal the open segments early and wait until all sealed ones are written (not yet durable).
    ///
    /// # Errors
    /// [`LogError::Poisoned`].
    pub fn flush(&self) -> Result<(), LogError> {
        self.shared.flush()
    }

    /// Wait until the sealed segments are written, or cannot be: for those who append much and can wait, so
    /// that buffers are there for those who cannot.
    pub fn await_written(&self) {
        self.shared.await_written();
    }

    /// Write the oldest sealed segment, where no thread does; whether there was one.
    pub fn write_one(&self) -> bool {
        self.shared.write_one()
    }

    /// Make what is written durable.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], and the log is so from then on.
    pub fn sync(&self) -> Result<(), LogError> {
        self.shared.sync()
    }

    /// Seal the open segments, without waiting, and start a new epoch; the number of the one that ended.
    ///
    /// Until [`Log::state`] of that number, appended rows are taken to belong to the checkpoint, so the old version of a
    /// frozen row may be appended and released at once.
    pub fn cut(&self) -> u64 {
        self.shared.cut()
    }

    /// What the manifest of the checkpoint cut at `cut` has to hold: call it after [`Log::flush`] and
    /// [`Log::sync`] that followed the last row of the checkpoint, before anything is cut again. Rows appended later do
    /// not belong to this checkpoint, even if it becomes durable much later.
    pub fn state(&self, cut: u64) -> LogState {
        self.shared.table.write().state(cut)
    }

    /// The manifest of `cut` is durable: places freed before that cut may be written again. A checkpoint
    /// that failed is simply never reported.
    pub fn checkpoint_durable(&self, cut: u64) {
        self.shared.table.write().checkpoint_durable(cut, &self.shared.readings);
    }

    /// Write nothing over the segments of durable checkpoint `cut`, the last or one that is pinned already,
    /// until [`Log::unpin`].
    pub fn pin(&self, cut: u64) {
        self.shared.table.write().pin(cut);
    }

    /// Take back one [`Log::pin`].
    ///
    /// # Panics
    /// When `cut` is not pinned.
    pub fn unpin(&self, cut: u64) {
        self.shared.table.write().unpin(cut, &self.shared.readings);
    }

    /// Give free places back to the file system: those at the end of the file, and of those within it all
    /// but `kept` bytes for the segments to come; the bytes given back.
    pub fn discard_free(&self, kept: u64) -> u64 {
        let shared = &self.shared;
        let place_bytes = shared.geometry.place_bytes();
        let _alone = shared.discards.lock();
        let runs = {
            let mut table = shared.table.write();
            table.settle(&shared.readings);
            table.take_free((kept / place_bytes as u64) as usize)
        };
        let mut discarded = 0;
        for (first, count) in runs {
            let span =
                Span { offset: shared.geometry.place_offset(first), bytes: place_bytes * count as usize };
            // A refusal costs nothing but the space: the places are unused either way.
            let given = shared.device.discard(span).is_ok();
            shared.table.write().discarded(first, count, given);
            discarded += if given { span.bytes as u64 } else { 0 };
        }
        discarded
    }

    /// The segment whose cleaning pays most, none when all are full of retained rows.
    pub fn victim(&self) -> Option<Victim> {
        self.shared.table.read().victim(&self.shared.live)
    }

    /// Read a whole segment from the device and visit its rows, current or not; healthy blocks are
    /// visited even if others are not. A segment that fails is not offered as a victim again.
    ///
    /// # Errors
    /// [`LogError::Moved`] when no segment lies in `place`, else the first damage found.
    pub fn segment_rows(
        &self,
        place: u32,
        visit: &mut dyn FnMut(u32, RowKey, &[u8]),
    ) -> Result<(), LogError> {
        let _reading = self.shared.readings.whole(place);
        self.shared.segment_rows(place, visit)
    }

    /// The rows of a segment have moved. One that holds rows all the same is damaged, its keys are not those
    /// of the index: it is not offered as a victim again, or cleaning would never end.
    pub fn cleaned(&self, victim: Victim) {
        let Victim { place, sequence, .. } = victim;
        let mut table = self.shared.table.write();
        if self.shared.live.of(place) > 0 {
            table.damaged(place, sequence);
        }
    }

    /// Places that can be written now.
    pub fn free_places(&self) -> u32 {
        self.shared.table.read().free_places()
    }

    /// All row numbers of the log.
    pub fn row_limit(&self) -> u64 {
        self.shared.row_limit
    }

    /// Row numbers in places that cannot be written now, and all row numbers.
    pub fn row_numbers(&self) -> (u64, u64) {
        self.shared.table.read().row_numbers()
    }

    /// Bytes of the file by what may become of them.
    pub fn space(&self) -> LogSpace {
        self.shared.table.read().space(&self.shared.live)
    }

    /// Memory held: tail buffers, checksums, tables.
    pub fn bytes(&self) -> usize {
        let shared = &self.shared;
        shared.tail.bytes(&shared.geometry) + shared.table.read().bytes() + shared.live.bytes()
    }

    /// Memory kept for reading: it belongs to I/O, not to rows.
    pub fn scratch_bytes(&self) -> usize {
        self.shared.scratch_bytes()
    }

    /// What the log has done since it was opened.
    pub fn counts(&self) -> LogCounts {
        self.shared.counters.counts()
    }

    /// Shape of the segments.
    pub fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }
}

impl Reading<'_> {
    /// Read rows and hand each one to `deliver(position in wanted, result)` exactly once, in any order.
    ///
    /// Rows still in tail buffers come from memory; every other block is read once, however many wanted
    /// rows lie in it, and checked before its rows are delivered. The keys guard the rows in memory;
    /// those on the device are guarded by the checksum of their block. `deliver` may append.
    pub fn read(&self, wanted: &[(u32, RowKey)], deliver: &mut dyn FnMut(usize, RowResult<'_>)) {
        self.log.shared.read(wanted, deliver);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.log.shared.readings.end(self.stamp);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A forked child has no such thread, neither to join nor to detach.
            std::mem::forget(self.writer.take());
            return;
        }
        self.shared.tail.end();
        if let Some(writer) = self.writer.take() {
            // A panic of the writer was caught and has poisoned the log and the store.
            let _ = writer.join();
        }
    }
}

impl Debug for Log {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("group", &self.shared.group)
            .field("geometry", &self.shared.geometry)
            .field("space", &self.space())
            .finish_non_exhaustive()
    }
}
