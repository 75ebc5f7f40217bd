//! The state of a table, apart from its rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rowmill_kernels::{Rounding, RoundingKey, RowInitializer, Update};
use rowmill_rows::{Category, Dtype, EvictionRule, StalenessBound, TableSpec};
use rowmill_sync::{Mutex, ranks};

use super::event_clock::EventClock;
use super::hot_rows::HotRows;
use super::keys::Key;
use super::sketch::Sketch;
use super::stamp::Mark;
use crate::error::StoreError;
use crate::files;

/// Identity, spec and counters of one table.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) name: String,
    pub(crate) category: Category,
    /// Number of the table within its group.
    pub(crate) local: u32,
    pub(crate) spec: TableSpec,
    /// Draws the weights of missing rows.
    pub(crate) initializer: RowInitializer,
    /// Seeds the rounding of updated bf16 weights.
    rounding: RoundingKey,
    /// Updates applied: one per step, for any number of rows. It is the step count of Adam and an input of
    /// the rounding of bf16 weights.
    steps: AtomicU64,
    accesses: AtomicU64,
    births: AtomicU64,
    /// Number of rows deleted, and of rows evicted.
    deletes: AtomicU64,
    evicted: AtomicU64,
    /// Number of automatic evictions that have become due.
    evictions_due: AtomicU64,
    /// Counts ids without a row, if the table has admission.
    pub(crate) sketch: Option<Mutex<Sketch, ranks::Sketch>>,
    /// The event time of the store.
    pub(crate) events: Arc<EventClock>,
    hot: Mutex<HotRows, ranks::HotRows>,
}

impl TableState {
    pub(crate) fn new(
        name: String,
        category: Category,
        local: u32,
        spec: TableSpec,
        seed: u64,
        steps: u64,
        events: Arc<EventClock>,
    ) -> Self {
        let zero = || AtomicU64::new(0);
        let sketch = spec.admission.map(|admission| {
            let seed = seed ^ (u64::from(category.0) << 32);
            Mutex::new(Sketch::new(admission.bytes as usize, seed))
        });
        let initializer = RowInitializer::new(&spec.initializer, seed, category.0).for_dtype(spec.dtype);
        let rounding = RoundingKey::new(seed, category.0);
        let state = Self {
            name,
            category,
            local,
            spec,
            initializer,
            rounding,
            steps: zero(),
            accesses: zero(),
            births: zero(),
            deletes: zero(),
            evicted: zero(),
            evictions_due: zero(),
            sketch,
            events,
            hot: Mutex::default(),
        };
        state.restore_steps(steps);
        state
    }

    /// The bound on outstanding gets, or `None` if the table keeps no clocks.
    pub(crate) fn bound(&self) -> Option<u8> {
        match self.spec.staleness {
            StalenessBound::Steps(bound) => Some(bound),
            StalenessBound::Infinite => None,
        }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    /// Count an update. Returns its number, counted from 1.
    pub(crate) fn next_step(&self) -> u64 {
        self.steps.fetch_add(1, Relaxed) + 1
    }

    /// The update for the rows of `keys`. For bf16 weights it carries the noise for rounding; `ids` is a
    /// buffer for the ids of these rows.
    #[inline]
    pub(crate) fn rounded<'a>(&self, update: &Update<'_>, keys: &[Key], ids: &'a mut [u64]) -> Update<'a> {
        let Update { lr, step, .. } = *update;
        let rounding = match self.spec.dtype {
            Dtype::F32 | Dtype::SplitBf16 => None,
            Dtype::Bf16 => {
                let ids = &mut ids[..keys.len()];
                ids.iter_mut().zip(keys).for_each(|(id, key)| *id = key.id);
                Some(Rounding { key: self.rounding, ids })
            }
        };
        Update { lr, step, rounding }
    }

    /// Continue the update count of another store, and with it the automatic evictions.
    pub(crate) fn restore_steps(&self, steps: u64) {
        self.steps.store(steps, Relaxed);
        self.evictions_due.store(self.evictions_at(steps), Relaxed);
    }

    /// Count lookups of these ids. Returns their number.
    pub(crate) fn count_accesses(&self, ids: &[u64]) -> usize {
        let before = self.accesses.fetch_add(ids.len() as u64, Relaxed);
        if HotRows::next_counted(before) < ids.len() as u64 {
            self.hot.lock().observe(before, ids);
        }
        ids.len()
    }

    /// Count lookups of these ids, each `times` times. Returns the total number.
    pub(crate) fn count_repeated(&self, ids: &[u64], times: &[u32]) -> usize {
        let lookups = times.iter().map(|&times| u64::from(times)).sum();
        let before = self.accesses.fetch_add(lookups, Relaxed);
        if HotRows::next_counted(before) < lookups {
            self.hot.lock().observe_repeated(before, ids, times);
        }
        lookups as usize
    }

    /// The most looked-up ids with an estimate of their number of lookups.
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

    pub(crate) fn count_deletes(&self, rows: usize) {
        self.deletes.fetch_add(rows as u64, Relaxed);
    }

    pub(crate) fn deletes(&self) -> u64 {
        self.deletes.load(Relaxed)
    }

    pub(crate) fn count_evicted(&self, rows: usize) {
        self.evicted.fetch_add(rows as u64, Relaxed);
    }

    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Continue the counters of a checkpoint.
    pub(crate) fn restore_counts(&self, entry: &files::TableEntry) {
        *self.hot.lock() = HotRows::restore(entry.hot.clone());
        self.accesses.store(entry.accesses, Relaxed);
        self.births.store(entry.births, Relaxed);
        self.deletes.store(entry.deletes, Relaxed);
        self.evicted.store(entry.evicted, Relaxed);
    }

    // ------------------------------------------------------------------ eviction

    fn rule(&self) -> Option<EvictionRule> {
        self.spec.eviction.map(|eviction| eviction.rule)
    }

    /// Check that an event time is known if the eviction rule of the table needs one.
    ///
    /// # Errors
    /// [`StoreError::NoEventTime`] until a step has passed one.
    pub(crate) fn check_event_time(&self) -> Result<(), StoreError> {
        if matches!(self.rule(), Some(EvictionRule::TtlSeconds { .. })) && self.events.now().is_none() {
            return Err(StoreError::NoEventTime { table: self.name.clone() });
        }
        Ok(())
    }

    /// How a change of rows at step `step` updates their stamps.
    pub(crate) fn mark(&self, step: u64, event_time: Option<u64>) -> Option<Mark> {
        match self.rule()? {
            EvictionRule::TtlSteps { .. } => Some(Mark::At(step)),
            EvictionRule::TtlSeconds { .. } => {
                Some(Mark::At(event_time.or_else(|| self.events.now()).unwrap_or(0)))
            }
            EvictionRule::LeastFrequent { .. } => Some(Mark::Count),
            EvictionRule::LowestScore { .. }
            | EvictionRule::LowestNorm { .. }
            | EvictionRule::NormBelow { .. } => None,
        }
    }

    /// The stamp of a row that is created now.
    pub(crate) fn birth_stamp(&self) -> u64 {
        match self.mark(self.steps(), None) {
            Some(Mark::At(now)) => now,
            _ => 0,
        }
    }

    /// Number of automatic evictions due by step `steps`.
    fn evictions_at(&self, steps: u64) -> u64 {
        steps.checked_div(self.spec.eviction.map_or(0, |eviction| eviction.every)).unwrap_or(0)
    }

    /// Whether an automatic eviction has become due. Returns true once per eviction.
    pub(crate) fn take_due_eviction(&self) -> bool {
        let due = self.evictions_at(self.steps());
        due > 0 && self.evictions_due.fetch_max(due, Relaxed) < due
    }
}
