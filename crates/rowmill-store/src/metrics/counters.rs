//! Counters that operations add to.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of histogram buckets: one for each clock value, the last for all larger values.
pub(crate) const STALENESS_BUCKETS: usize = 17;

/// Counters of a whole store, all 0 at open.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) lookups: AtomicU64,
    pub(crate) rows_looked_up: AtomicU64,
    pub(crate) lookups_apart: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) updates: AtomicU64,
    pub(crate) rows_updated: AtomicU64,
    pub(crate) deletes: AtomicU64,
    pub(crate) cold_reads: AtomicU64,
    pub(crate) cold_wait_ns: AtomicU64,
    pub(crate) clock_waits: AtomicU64,
    pub(crate) clock_wait_ns: AtomicU64,
    pub(crate) lookahead_rows: AtomicU64,
    pub(crate) lookahead_loaded: AtomicU64,
    pub(crate) lookahead_late: AtomicU64,
    pub(crate) lookahead_dropped: AtomicU64,
    pub(crate) lookahead_errors: AtomicU64,
    pub(crate) compactions: AtomicU64,
    pub(crate) rows_compacted: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) staleness: [AtomicU64; STALENESS_BUCKETS],
}

impl Counters {
    /// Count a call that looked up `lookups` ids, `rows` of them distinct.
    pub(crate) fn count_call(&self, lookups: usize, rows: usize) {
        self.calls.fetch_add(1, Relaxed);
        self.lookups.fetch_add(lookups as u64, Relaxed);
        self.rows_looked_up.fetch_add(rows as u64, Relaxed);
    }

    /// Count a call that changed `rows` rows.
    pub(crate) fn count_update(&self, rows: usize) {
        self.updates.fetch_add(1, Relaxed);
        self.rows_updated.fetch_add(rows as u64, Relaxed);
    }

    /// Count clocks that were taken.
    pub(crate) fn count_staleness(&self, taken: &StalenessCounts) {
        for (total, &count) in self.staleness.iter().zip(&taken.0).filter(|(_, count)| **count > 0) {
            total.fetch_add(count, Relaxed);
        }
    }
}

/// Clocks taken by one call, by the number of gets outstanding before.
#[derive(Debug, Default)]
pub(crate) struct StalenessCounts([u64; STALENESS_BUCKETS]);

impl StalenessCounts {
    #[inline]
    pub(crate) fn count(&mut self, outstanding: u32) {
        self.0[(outstanding as usize).min(STALENESS_BUCKETS - 1)] += 1;
    }
}
