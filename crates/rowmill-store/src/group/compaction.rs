//! Compaction: moves the live rows of mostly dead segments to the end of the log.

use std::sync::atomic::Ordering::Relaxed;

use rowmill_log::{LogError, Victim};

use super::group::Group;
use crate::error::StoreError;

/// Segments are cleaned while their places hold more than this many times the live bytes. Live bytes include
/// the unused ends of blocks: a block holds four rows of 832 bytes and wastes 768 bytes, so no cleaning
/// brings that log below 1.23 times its rows.
const SPACE_MAX: f64 = 1.25;
/// From this many times the live bytes on, calls that write rows clean segments themselves before they return. The
/// cleaning thread alone falls behind when many threads write, or when it gets no processor time.
const SPACE_BEHIND: f64 = 1.4;
/// Most bytes of segments that a call cleans before it returns: 25 ms of work on a disk that a checkpoint keeps busy.
const CLEANED_PER_CALL: usize = 4 << 20;
/// Where a call changes many rows, most bytes that it cleans for each byte of them. In a log of 1.4 times the live bytes,
/// about half of a victim's rows are dead, so cleaning two segments frees one.
const CLEANED_PER_CHANGED: usize = 2;
/// This many segments, and the size of the rows that are only in memory, are allowed on top, so that small
/// stores are not cleaned.
const SEGMENTS_SPARE: u64 = 4;
/// Free places are kept for new segments while used, pinned and free places together hold at most this many
/// times the live bytes, plus the rows that are only in memory. More are returned to the file system. Pinned
/// places become free in batches of a tenth of the rows and more.
const SPACE_KEPT: f64 = 1.35;
/// The same for a store with versions, whose index files take some 0.1 times the live bytes.
const SPACE_KEPT_BESIDE_VERSIONS: f64 = 1.3;
/// When only row places are short, a segment is cleaned if at least 1/16 of its rows is dead.
const FULL_SHARE: u64 = 16;
impl Group {
    /// Clean until the log is within [`SPACE_BEHIND`], but at most a few MiB: the call that has changed `rows` rows waits
    /// meanwhile. The next call goes on. The caller holds no lock of the group.
    pub(crate) fn clean_if_behind(&self, rows: usize) {
        let log = &self.core.log;
        let written = log.counts().segments_written;
        // Most calls find no new segment. They only load, because a store to memory that all threads share is slow.
        if self.segments_checked.load(Relaxed) == written {
            return;
        }
        let geometry = log.geometry();
        let bytes = CLEANED_PER_CALL.max(CLEANED_PER_CHANGED * rows * geometry.packed_row_bytes());
        for _ in 0..bytes.div_ceil(geometry.place_bytes()) {
            // Errors are reported by later calls, as for the cleaning thread.
            if !self.exceeds(SPACE_BEHIND) || !self.clean_one().unwrap_or(false) {
                self.segments_checked.store(written, Relaxed);
                return;
            }
        }
    }

    /// Whether the segments of the log take more than `times` the live bytes, and the bytes allowed on top.
    fn exceeds(&self, times: f64) -> bool {
        let log = &self.core.log;
        let space = log.space();
        let allowed =
            space.packed as f64 * times + (SEGMENTS_SPARE * log.geometry().place_bytes() as u64) as f64;
        // The sum over all shards is last because it takes their locks.
        space.used as f64 > allowed && space.used as f64 > allowed + self.bytes_in_memory_alone() as f64
    }

    /// One turn of a background thread: clean one segment if space requires it, and return unneeded free space to the
    /// file system. Returns whether a segment was cleaned. Errors are reported by later calls: a failed write has
    /// poisoned the log, and a damaged segment is not offered again.
    pub(crate) fn clean_turn(&self) -> bool {
        let cleaned = self.clean_one().unwrap_or(false);
        // A checkpoint may have freed places meanwhile; cleaning takes long.
        self.give_space_back();
        cleaned
    }

    /// Clean one segment if space requires it. Returns whether one was cleaned.
    ///
    /// # Errors
    /// When the segment is damaged or its rows cannot be written.
    fn clean_one(&self) -> Result<bool, StoreError> {
        let log = &self.core.log;
        let enough_space = !self.exceeds(SPACE_MAX);
        if enough_space && self.core.has_places_for(0) {
            return Ok(false);
        }
        let Some(victim) = log.victim() else { return Ok(false) };
        // Cleaning uses places at once and frees places only at the next checkpoint, so it must leave enough
        // for that one.
        let full = u64::from(victim.live_rows) * FULL_SHARE
            > u64::from(log.geometry().rows_per_segment()) * (FULL_SHARE - 1);
        if (enough_space && full) || !self.core.has_places_to_clean() {
            return Ok(false);
        }
        self.clean(victim)?;
        Ok(true)
    }

    /// Clean before the cut of a checkpoint that lets versions go, so that it frees the space of their rows. Cleaned
    /// after it, their segments would stay until the next checkpoint.
    pub(crate) fn clean_for_cut(&self) {
        let log = &self.core.log;
        // All rows that are only in memory will be in the log.
        let memory = self.bytes_in_memory_alone();
        let spare = SEGMENTS_SPARE * log.geometry().place_bytes() as u64;
        loop {
            let space = log.space();
            let allowed = (space.packed + memory) as f64 * SPACE_MAX + spare as f64;
            if (space.used + memory) as f64 <= allowed || !self.core.has_places_to_clean() {
                return;
            }
            // Errors are reported by later calls, as for the cleaning thread.
            let Some(victim) = log.victim() else { return };
            if self.clean(victim).is_err() {
                return;
            }
        }
    }

    /// Clean one segment. Another thread that claims it first cleans it.
    fn clean(&self, victim: Victim) -> Result<(), StoreError> {
        let log = &self.core.log;
        let Some(_claim) = log.claim(victim) else { return Ok(()) };
        let (moved, read) = self.move_rows(victim.place)?;
        self.counters.rows_compacted.fetch_add(moved, Relaxed);
        read?;
        log.cleaned(victim);
        self.counters.compactions.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Bytes that rows which are only in memory will use in the log. Changed rows may stay in memory. If
    /// cleaning ignored them, it would shrink the log below the size of the rows and move nearly every row
    /// that it reads.
    fn bytes_in_memory_alone(&self) -> u64 {
        let rows: usize = self.shards.iter().map(|shard| shard.state.read().dirty_rows()).sum();
        (rows * self.core.log.geometry().packed_row_bytes()) as u64
    }

    /// Return unneeded free space to the file system. Useful after a checkpoint, when pinned places have
    /// become free. Calls of users leave it to the background threads and to the checkpoint: it takes 100 ms for some
    /// hundred MiB.
    pub(crate) fn give_space_back(&self) {
        let log = &self.core.log;
        let space = log.space();
        let times = if log.is_tracking() { SPACE_KEPT_BESIDE_VERSIONS } else { SPACE_KEPT };
        let kept = (space.packed as f64 * times) as u64 + self.bytes_in_memory_alone();
        log.discard_free(kept.saturating_sub(space.used + space.pinned));
    }

    /// Move the rows of a segment that the index or a version names to the end of the log. Returns their
    /// number, and the damage found. Rows of damaged blocks are not moved.
    ///
    /// # Errors
    /// When the rows cannot be written.
    pub(crate) fn move_rows(&self, place: u32) -> Result<(u64, Result<(), LogError>), StoreError> {
        let tables = self.tables.read().clone();
        let mut failure = None;
        let mut moved = 0;
        let read = self.core.log.segment_rows(place, &mut |row, key, bytes| {
            if failure.is_some() {
                return;
            }
            // Versions may have rows of tables that a rollback removed. Any shard's lock orders their moves
            // with the cut of a checkpoint.
            let table = tables.iter().find(|table| table.category == key.category);
            let shard =
                table.map_or(0, |table| crate::table::home(table.spec.ids, key.id, self.shards.len()));
            let mut shard = self.shards[shard].state.write();
            let relocated = match table {
                Some(table) => shard.relocate(&self.core, key, table.local, row, bytes),
                None => Ok(false),
            };
            let relocated = match relocated {
                Ok(false) => self.core.relocate_kept(key, row, bytes),
                relocated => relocated,
            };
            match relocated {
                Ok(has_moved) => moved += u64::from(has_moved),
                Err(error) => failure = Some(error),
            }
        });
        failure.map_or(Ok((moved, read)), Err)
    }
}
