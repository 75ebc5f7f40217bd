//! What the engine keeps about a table beside its rows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rowmill_kernels::RowInitializer;
use rowmill_rows::{Category, StalenessBound, TableSpec};

use crate::hot_rows::HotRows;

/// Identity, spec and counters of one table.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) name: String,
    pub(crate) category: Category,
    /// Number of the table within its group.
    pub(crate) local: u32,
    pub(crate) spec: TableSpec,
    /// Draws the weights of rows that are missing.
    pub(crate) initializer: RowInitializer,
    /// Updates applied: one per step, however many rows (the step count of Adam).
    steps: AtomicU64,
    accesses: AtomicU64,
    births: AtomicU64,
    hot: Mutex<HotRows>,
}

impl TableState {
    pub(crate) fn new(
        name: String,
        category: Category,
        local: u32,
        spec: TableSpec,
        seed: u64,
        steps: u64,
    ) -> Self {
        let zero = || AtomicU64::new(0);
        let initializer = RowInitializer::new(&spec.initializer, seed, category.0);
        Self {
            name,
            category,
            local,
            spec,
            initializer,
            steps: AtomicU64::new(steps),
            accesses: zero(),
            births: zero(),
            hot: Mutex::default(),
        }
    }

    /// The bound on outstanding gets, or `None` where no clocks are kept.
    pub(crate) fn bound(&self) -> Option<u8> {
        match self.spec.staleness {
            StalenessBound::Steps(bound) => Some(bound),
            StalenessBound::Infinite => None,
        }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    /// Count an update; returns its number, from 1.
    pub(crate) fn next_step(&self) -> u64 {
        self.steps.fetch_add(1, Relaxed) + 1
    }

    /// Continue the updates of another store.
    pub(crate) fn restore_steps(&self, steps: u64) {
        self.steps.store(steps, Relaxed);
    }

    /// Count lookups of these ids.
    pub(crate) fn count_accesses(&self, ids: &[u64]) {
        self.accesses.fetch_add(ids.len() as u64, Relaxed);
        self.hot.lock().observe(ids);
    }

    /// The most looked-up ids with an estimate of their lookups.
    pub(crate) fn hottest(&self, count: usize) -> Vec<(u64, u64)> {
        self.hot.lock().top(count)
    }

    /// Sampled counts of hot ids, for a checkpoint.
    pub(crate) fn hot_counts(&self) -> Vec<(u64, u64)> {
        self.hot.lock().counts().to_vec()
    }

    pub(crate) fn count_birth(&self) {
        self.births.fetch_add(1, Relaxed);
    }

    pub(crate) fn accesses(&self) -> u64 {
        self.accesses.load(Relaxed)
    }

    pub(crate) fn births(&self) -> u64 {
        self.births.load(Relaxed)
    }

    /// Continue the counters of a checkpoint.
    pub(crate) fn restore_counts(&self, accesses: u64, births: u64, hot: Vec<(u64, u64)>) {
        *self.hot.lock() = HotRows::restore(hot, accesses);
        self.accesses.store(accesses, Relaxed);
        self.births.store(births, Relaxed);
    }
}
