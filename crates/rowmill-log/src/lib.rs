//! The device log of one group: rows appended in segments, read back by row number, freed by segment.
//!
//! Appended rows collect in tail buffers, and a thread of the log writes full segments. Appending a row
//! *retains* it. The caller *releases* the row when neither the index nor an unfinished checkpoint names it
//! any more. A segment without retained rows becomes free. `segment_table` decides which places may be
//! rewritten and when; `trailer` defines the format of a segment's checksums and keys.
//!
//! The log does not know which rows are current and never moves rows by itself. After a crash it starts from
//! the last checkpoint: rows that no checkpoint names are lost.

#![forbid(unsafe_code)]

mod counters;
mod error;
mod geometry;
mod holders;
mod live_counts;
mod reader;
mod reading;
mod retaining;
mod row_set;
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
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use rowmill_io::{Device, Process, Span};
use rowmill_rows::RowKey;
use rowmill_sync::{Mutex, Poison, RwLock, ranks};

use counters::Counters;
use holders::Holders;
use live_counts::LiveCounts;
use reader::Scratch;
use reading::Readings;
use segment_table::SegmentTable;
use tail::{Stream, Tail};

pub use counters::LogCounts;
pub use error::{Damage, LogError, PoisonCause, RowResult, SegmentPart};
pub use geometry::{Geometry, ROW_NUMBERS};
pub use retaining::Retaining;
pub use row_set::RowSet;
pub use segment_copy::SegmentCopier;
pub use segment_table::{LogSpace, Victim};
pub use state::{LogState, SegmentRecord};

/// Options for opening a log.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Group of the log, written into trailers and errors.
    pub group: u32,
    /// Shape of the segments; it must be the same at every opening.
    pub geometry: Geometry,
    /// Number of segment buffers in memory. 4 let appending, cleaning and writing overlap. 0 opens the log
    /// for reading only.
    pub tail_buffers: usize,
    /// Whether a thread of the log writes segments. If not, callers write them with [`Log::write_one`], and
    /// when they wait for a buffer.
    pub writer_thread: bool,
    /// Memory limit for segment checksums. Checksums that were not used recently are dropped and read again
    /// when needed.
    pub checksum_bytes_max: usize,
    /// A random number that differs at every opening of the store.
    pub incarnation: u64,
    /// Row numbers of the log: [`ROW_NUMBERS`], or fewer in a test.
    pub row_numbers: u64,
    /// Set when the writer thread panics.
    pub poison: Arc<Poison>,
}

impl LogConfig {
    /// Options of a log that is only read.
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

/// State that callers and the writer thread share.
struct Shared {
    group: u32,
    geometry: Geometry,
    /// All row numbers of the log.
    row_limit: u64,
    device: Arc<dyn Device>,
    tail: Tail,
    table: RwLock<SegmentTable, ranks::LogSegments>,
    live: LiveCounts,
    /// Set once the store has versions.
    holders: OnceLock<Holders>,
    readings: Readings,
    scratch: Mutex<Vec<Scratch>, ranks::LogScratch>,
    /// Held while free places are returned to the file system. A second caller waits until they are.
    discards: Mutex<(), ranks::LogDiscards>,
    counters: Counters,
}

/// Protects a reader: row numbers looked up after this was made and read before it is dropped never give
/// another row's bytes. Drop it soon: freed places cannot be reused while it lives.
#[must_use = "rows are protected only while this lives"]
pub struct Reading<'a> {
    log: &'a Log,
    stamp: u64,
}

/// A segment that one thread cleans, until this is dropped.
#[must_use = "other threads clean the segment too"]
#[derive(Debug)]
pub struct Claim<'a> {
    log: &'a Log,
    victim: Victim,
}

impl Log {
    /// Open the log as the checkpoint `state` describes it. Afterwards retain every row of the index
    /// ([`Log::retaining`]), then call [`Log::loaded`].
    ///
    /// # Errors
    /// [`LogError::BadState`] when the state is impossible or the file is too short for it;
    /// [`LogError::Thread`].
    pub fn open(device: Arc<dyn Device>, config: LogConfig, state: &LogState) -> Result<Self, LogError> {
        let LogConfig { group, geometry, tail_buffers, writer_thread, .. } = config;
        let bad_state = |reason| LogError::BadState { group, reason };
        // Checked first, because the sizes of the tables allocated below come from the state.
        let end = state.segments.iter().map(|segment| u64::from(segment.place) + 1).max().unwrap_or(0);
        let needed = u128::from(end) * geometry.place_bytes() as u128;
        if needed > u128::from(device.bytes()) {
            return Err(bad_state(format!(
                "its segments need {needed} bytes, the file has {}",
                device.bytes()
            )));
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
            holders: OnceLock::new(),
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

    /// Append a row, retain it once and return its row number. Waits while every tail buffer is full or being
    /// written.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], [`LogError::Full`] or [`LogError::ReadOnly`]; nothing is appended then.
    ///
    /// # Panics
    /// When the length of `row` is not the stride.
    pub fn append(&self, key: RowKey, row: &[u8]) -> Result<u32, LogError> {
        self.append_keeping(0, key, row)
    }

    /// As [`Log::append`], but keeps `places` places free for the next checkpoint: [`LogError::Full`] when
    /// fewer are left.
    ///
    /// # Errors
    /// As [`Log::append`].
    ///
    /// # Panics
    /// As [`Log::append`].
    pub fn append_keeping(&self, places: u32, key: RowKey, row: &[u8]) -> Result<u32, LogError> {
        self.shared.append(Stream::Changed, places, key, row)
    }

    /// As [`Log::append`], for a row that cleaning moves. Moved rows share segments with moved rows only.
    ///
    /// # Errors
    /// As [`Log::append`].
    ///
    /// # Panics
    /// As [`Log::append`].
    pub fn append_moved(&self, key: RowKey, row: &[u8]) -> Result<u32, LogError> {
        self.shared.append(Stream::Moved, 0, key, row)
    }

    /// Move row `old`, which the index does not name, for the versions that name it. Returns its new number;
    /// `None` if no version names it. The caller prevents that the row moves twice at a time.
    ///
    /// # Errors
    /// As [`Log::append`].
    ///
    /// # Panics
    /// As [`Log::append`].
    pub fn move_kept(&self, old: u32, key: RowKey, row: &[u8]) -> Result<Option<u32>, LogError> {
        let Some(holders) = self.shared.holders.get().filter(|holders| holders.keep(old)) else {
            return Ok(None);
        };
        let new = self.append_moved(key, row)?;
        let follows = holders.follow(old, new);
        // Only the versions hold the copy. If they were dropped meanwhile, it is released here.
        self.release(new);
        if !follows {
            return Ok(None);
        }
        self.let_go_of(old);
        Ok(Some(new))
    }

    /// Row `old`, which the index names, was copied to `new`: the versions that name it follow. Returns
    /// whether there are any. The caller then releases `old`.
    pub fn follow(&self, old: u32, new: u32) -> bool {
        self.shared.holders.get().is_some_and(|holders| holders.follow(old, new))
    }

    /// Stop taking and writing rows. When this returns, no write is in progress. Reads continue to work.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Begin to read. Call this before looking up the row numbers.
    pub fn reading(&self) -> Reading<'_> {
        Reading { log: self, stamp: self.shared.readings.begin() }
    }

    /// Begin to retain the rows of a loaded index.
    pub fn retaining(&self) -> Retaining<'_> {
        Retaining::new(self)
    }

    /// Release one hold on a row. Call it after the index has changed, under the lock that protects the
    /// index, so that no thread can look the number up afterwards.
    ///
    /// # Panics
    /// When the rows of that segment were released more often than retained.
    pub fn release(&self, number: u32) {
        if !self.shared.holders.get().is_some_and(|holders| holders.release(number)) {
            self.let_go_of(number);
        }
    }

    /// Nothing holds a row any more.
    fn let_go_of(&self, number: u32) {
        let (place, _) = self.shared.geometry.locate(number);
        if self.shared.live.release(place) {
            self.shared.table.write().emptied(place, &self.shared.live, &self.shared.readings);
        }
    }

    /// Call this once every row of the loaded index is retained. Segments without retained rows become free
    /// once the next checkpoint is durable.
    pub fn loaded(&self) {
        self.shared.table.write().loaded(&self.shared.live, &self.shared.readings);
    }

    /// From now on remember which rows the index names, as versions need it. The caller then names every row
    /// of the index once ([`Log::name`]); rows appended or released meanwhile are counted correctly.
    pub fn track(&self) {
        self.shared.holders.get_or_init(Holders::default);
    }

    /// Whether [`Log::track`] was called.
    pub fn is_tracking(&self) -> bool {
        self.shared.holders.get().is_some()
    }

    /// The index names this row, which was appended before [`Log::track`]. Call it under the lock that
    /// protects the index.
    pub fn name(&self, number: u32) {
        if let Some(holders) = self.shared.holders.get() {
            holders.name(number);
        }
    }

    /// Remember the rows of the index for the checkpoint being cut, and keep them as `version`, if given.
    /// Call it while no row can change, next to [`Log::cut`]. Does nothing without [`Log::track`].
    pub fn cut_rows(&self, version: Option<u64>) {
        if let Some(holders) = self.shared.holders.get() {
            holders.cut(version);
        }
    }

    /// A row of the checkpoint being made was appended after its cut. Call it before the row is released.
    pub fn append_to_cut(&self, number: u32) {
        if let Some(holders) = self.shared.holders.get() {
            holders.append_to_cut(number);
        }
    }

    /// The rows of the checkpoint being made, once all of them are appended; `None` without [`Log::track`].
    pub fn finish_cut_rows(&self) -> Option<RowSet> {
        self.shared.holders.get().and_then(Holders::finish_cut)
    }

    /// Keep the rows of a version that was loaded. Call it before [`Log::loaded`].
    ///
    /// # Errors
    /// The first row that the log does not have; nothing is kept then.
    ///
    /// # Panics
    /// When the log does not track its rows.
    pub fn adopt(&self, version: u64, rows: RowSet) -> Result<(), u32> {
        let mut retaining = self.retaining();
        if let Some(unknown) = rows.rows().find(|&row| !retaining.has(row)) {
            return Err(unknown);
        }
        let holders = self.shared.holders.get().expect("a log with versions tracks its rows");
        for row in holders.adopt(version, rows) {
            retaining.count(row);
        }
        retaining.finish();
        Ok(())
    }

    /// Rows that only this version names may go. Does nothing if there is no such version.
    pub fn let_go(&self, version: u64) {
        if let Some(holders) = self.shared.holders.get() {
            holders.let_go(version).into_iter().for_each(|row| self.let_go_of(row));
        }
    }

    /// Seal the open segments early and wait until all sealed ones are written (not yet durable).
    ///
    /// # Errors
    /// [`LogError::Poisoned`].
    pub fn flush(&self) -> Result<(), LogError> {
        self.shared.flush()
    }

    /// Wait until all sealed segments are written, or cannot be written. Callers that append many rows and
    /// can wait call this, so that latency-critical callers find idle buffers.
    pub fn await_written(&self) {
        self.shared.await_written();
    }

    /// Write the oldest sealed segment if the log has no writer thread. Returns whether there was one.
    pub fn write_one(&self) -> bool {
        self.shared.write_one()
    }

    /// Make all written segments durable.
    ///
    /// # Errors
    /// [`LogError::Poisoned`]; the log is poisoned from then on.
    pub fn sync(&self) -> Result<(), LogError> {
        self.shared.sync()
    }

    /// Seal the open segments without waiting and start a new epoch. Returns the number of the epoch that
    /// ended.
    ///
    /// Until [`Log::state`] of that number is taken, the log assumes that the checkpoint may name rows
    /// appended meanwhile. So the old version of a frozen row may be appended and released at once.
    pub fn cut(&self) -> u64 {
        self.shared.cut()
    }

    /// The state of the log for the manifest of the checkpoint cut at `cut`. Call it after the last row of
    /// the checkpoint was appended and [`Log::flush`] and [`Log::sync`] followed, and before the next cut.
    /// Rows appended later do not belong to this checkpoint, even if it becomes durable much later.
    pub fn state(&self, cut: u64) -> LogState {
        self.shared.table.write().state(cut)
    }

    /// The manifest of `cut` is durable: places freed before that cut may be rewritten. Do not call it for a
    /// failed checkpoint.
    pub fn checkpoint_durable(&self, cut: u64) {
        self.shared.table.write().checkpoint_durable(cut, &self.shared.readings);
    }

    /// Until [`Log::unpin`], rewrite no segment of durable checkpoint `cut`, which is the last one or already
    /// pinned.
    pub fn pin(&self, cut: u64) {
        self.shared.table.write().pin(cut);
    }

    /// Undo one [`Log::pin`].
    ///
    /// # Panics
    /// When `cut` is not pinned.
    pub fn unpin(&self, cut: u64) {
        self.shared.table.write().unpin(cut, &self.shared.readings);
    }

    /// Return free places to the file system: all at the end of the file, and all others except `kept` bytes
    /// for coming segments. Returns the number of bytes given back.
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
            // If the device refuses, the places stay free and only keep their disk space.
            let given = shared.device.discard(span).is_ok();
            shared.table.write().discarded(first, count, given);
            discarded += if given { span.bytes as u64 } else { 0 };
        }
        discarded
    }

    /// The segment whose cleaning pays most, among those that no thread has claimed; `None` when all are full of
    /// retained rows.
    pub fn victim(&self) -> Option<Victim> {
        self.shared.table.read().victim(&self.shared.live)
    }

    /// Claim a segment, so that no other thread cleans it too. `None` if another thread was faster.
    pub fn claim(&self, victim: Victim) -> Option<Claim<'_>> {
        let claimed = self.shared.table.write().claim(victim);
        // Lazily, since dropping a claim ends it.
        claimed.then(|| Claim { log: self, victim })
    }

    /// Read a whole segment from the device and visit its rows, current or not. Healthy blocks are visited
    /// even if other blocks are damaged. A segment that fails is not offered as a victim again.
    ///
    /// # Errors
    /// [`LogError::Moved`] when `place` holds no segment, else the first damage found.
    pub fn segment_rows(
        &self,
        place: u32,
        visit: &mut dyn FnMut(u32, RowKey, &[u8]),
    ) -> Result<(), LogError> {
        let _reading = self.shared.readings.whole(place);
        self.shared.segment_rows(place, visit)
    }

    /// The rows of a segment have moved. If it still holds retained rows, its keys differ from the index, so
    /// it is damaged. It is not offered as a victim again, or cleaning would never end.
    pub fn cleaned(&self, victim: Victim) {
        let Victim { place, sequence, .. } = victim;
        let mut table = self.shared.table.write();
        if self.shared.live.of(place) > 0 {
            table.damaged(place, sequence);
        }
    }

    /// Number of places that can be written now.
    pub fn free_places(&self) -> u32 {
        self.shared.table.read().free_places()
    }

    /// All row numbers of the log.
    pub fn row_limit(&self) -> u64 {
        self.shared.row_limit
    }

    /// The count of row numbers in places that cannot be written now, and of all row numbers.
    pub fn row_numbers(&self) -> (u64, u64) {
        self.shared.table.read().row_numbers()
    }

    /// Bytes of the file, by state.
    pub fn space(&self) -> LogSpace {
        self.shared.table.read().space(&self.shared.live)
    }

    /// Memory held: tail buffers, checksums, tables.
    pub fn bytes(&self) -> usize {
        let shared = &self.shared;
        let holders = shared.holders.get().map_or(0, Holders::bytes);
        shared.tail.bytes(&shared.geometry) + shared.table.read().bytes() + shared.live.bytes() + holders
    }

    /// Memory kept for reading. The caller charges it to I/O, not to rows.
    pub fn scratch_bytes(&self) -> usize {
        self.shared.scratch_bytes()
    }

    /// Counters of the log since it was opened.
    pub fn counts(&self) -> LogCounts {
        self.shared.counters.counts()
    }

    /// Shape of the segments.
    pub fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.log.shared.table.write().unclaim(self.victim);
    }
}

impl Reading<'_> {
    /// Read rows and pass each one to `deliver(position in wanted, result)` exactly once, in any order.
    ///
    /// Rows still in tail buffers come from memory. Every other block is read once, even if several wanted
    /// rows lie in it, and checked before its rows are delivered. The keys verify the rows in memory; the
    /// checksum of the block verifies rows from the device. `deliver` may append.
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
            // A forked child does not have this thread, so it can neither join nor detach it.
            std::mem::forget(self.writer.take());
            return;
        }
        self.shared.tail.end();
        if let Some(writer) = self.writer.take() {
            // A panic of the writer was caught and has already poisoned the log and the store.
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
