//! Space reclaim: rows of mostly dead segments move to the end of the log.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rowmill_log::LogError;
use rowmill_sync::Poison;

use crate::error::StoreError;
use crate::group::{Group, Groups, balance};
use crate::memory::Budget;
use crate::threads::Rounds;

/// Segments are cleaned while their places hold more than this many times the live bytes, which count with the ends of
/// blocks that rows leave empty: of rows of 832 bytes a block holds four and leaves 768 bytes, and no cleaning brings
/// a log below 1.23 times their own bytes.
const SPACE_MAX: f64 = 1.25;
/// And more than the rows that are in memory alone would take, and this many segments, so that a small store is left
/// alone.
const SEGMENTS_SPARE: u64 = 4;
/// Free places are kept for the segments to come while the log takes no more than this many times the live
/// bytes with them and pinned ones, beside what rows in memory alone would take, and are given back to the file system
/// beyond: pinned places become free by a tenth of the rows and more at a time.
const SPACE_KEPT: f64 = 1.35;
/// When only row places are short, a segment is cleaned if at least one row in this many is dead.
const FULL_SHARE: u64 = 16;
/// How often the thread looks.
const PERIOD: Duration = Duration::from_millis(50);

/// Start the thread that cleans.
pub(crate) fn start(groups: Groups, budget: Arc<Budget>, poison: Arc<Poison>) -> Result<Rounds, StoreError> {
    Rounds::start("compaction", PERIOD, poison, move |stopping| {
        let groups: Vec<_> = groups.read().clone();
        // What cannot be written out is reported by the next change of a row.
        let _ = balance(&groups, &budget);
        for group in groups {
            // A write that failed has poisoned the log, and every writer is told; a damaged segment is not
            // offered again.
            let mut cleaned = true;
            while cleaned && !stopping.is_due() {
                cleaned = group.clean_one().unwrap_or(false);
            }
        }
        true
    })
}

impl Group {
    /// Clean one segment if space asks for it; whether one was cleaned. What is free beyond need is given back.
    ///
    /// # Errors
    /// When the segment is damaged or its rows cannot be written.
    pub(crate) fn clean_one(&self) -> Result<bool, StoreError> {
        let log = &self.core.log;
        let space = log.space();
        let spare = SEGMENTS_SPARE * log.geometry().place_bytes() as u64 + self.bytes_in_memory_alone();
        let enough_space = space.used as f64 <= space.packed as f64 * SPACE_MAX + spare as f64;
        if enough_space && self.core.has_places_for(0) {
            self.give_space_back();
            return Ok(false);
        }
        let Some(victim) = log.victim() else { return Ok(false) };
        // Cleaning takes places at once and frees them at the next checkpoint, so it must leave enough for that one.
        let full = u64::from(victim.live_rows) * FULL_SHARE
            > u64::from(log.geometry().rows_per_segment()) * (FULL_SHARE - 1);
        if (enough_space && full) || !self.core.has_places_to_clean() {
            return Ok(false);
        }
        let (moved, read) = self.move_rows(victim.place)?;
        self.counters.rows_compacted.fetch_add(moved, Relaxed);
        read?;
        log.cleaned(victim);
        // A checkpoint may have made places free meanwhile. Cleaning behind it takes long.
        self.give_space_back();
        self.counters.compactions.fetch_add(1, Relaxed);
        Ok(true)
    }

    /// What rows that the log does not hold will take of it. Where those that change stay in memory, cleaning that
    /// counted only what the log holds would keep it smaller than the rows are, and move nearly all that it reads.
    fn bytes_in_memory_alone(&self) -> u64 {
        let rows: usize = self.shards.iter().map(|shard| shard.state.read().dirty_rows()).sum();
        (rows * self.core.log.geometry().packed_row_bytes()) as u64
    }

    /// Give the file system back what is free beyond need. Pays after a checkpoint, when pinned places have become
    /// free.
    pub(crate) fn give_space_back(&self) {
        let log = &self.core.log;
        let space = log.space();
        let kept = (space.packed as f64 * SPACE_KEPT) as u64 + self.bytes_in_memory_alone();
        log.discard_free(kept.saturating_sub(space.used + space.pinned));
    }

    /// Move the rows of a segment that are current to the end of the log: how many were, and what damage was
    /// met. Rows of damaged blocks stay.
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
            let Some(table) = tables.iter().find(|table| table.category == key.category) else { return };
            let shard = crate::table::home(table.spec.ids, key.id, self.shards.len());
            match self.shards[shard].state.write().relocate(&self.core, key, table.local, row, bytes) {
                Ok(was_current) => moved += u64::from(was_current),
                Err(error) => failure = Some(error),
            }
        });
        failure.map_or(Ok((moved, read)), Err)
    }
}
