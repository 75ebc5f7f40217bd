//! What all shards of a group share: layout, optimizer, log and budget.

use std::sync::Arc;

use rowmill_kernels::{RowUpdater, initialize};
use rowmill_rows::{GroupSpec, RowKey, RowLayout};

use crate::StoreError;
use crate::budget::Budget;
use crate::index_log::IndexLog;
use crate::log::Log;
use crate::shard::{SLOT_OVERHEAD_BYTES, SLOTS_MIN};

#[derive(Debug)]
pub(crate) struct Core {
    /// Number of the group within the store.
    pub(crate) number: u32,
    pub(crate) spec: GroupSpec,
    pub(crate) layout: RowLayout,
    /// Bytes of a segment of the log, as the group was made with.
    pub(crate) segment_bytes: usize,
    pub(crate) updater: RowUpdater,
    pub(crate) log: Log,
    pub(crate) index_log: Arc<IndexLog>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) seed: u64,
    /// Shards of the group.
    pub(crate) shards: usize,
}

impl Core {
    /// What the budget is charged for a slot.
    pub(crate) fn slot_bytes(&self) -> u64 {
        let overhead = if self.budget.rows_are_fixed() { 0 } else { SLOT_OVERHEAD_BYTES };
        (self.layout.stride + overhead) as u64
    }

    /// Take memory for `slots` slots, if the budget has it.
    pub(crate) fn take_rows(&self, slots: usize) -> bool {
        self.budget.take_rows(slots as u64 * self.slot_bytes())
    }

    /// Take memory for the few slots a shard cannot do without.
    pub(crate) fn force_rows(&self, slots: usize) -> bool {
        self.budget.force_rows(slots as u64 * self.slot_bytes());
        true
    }

    /// Give memory of `slots` slots back.
    pub(crate) fn give_rows(&self, slots: usize) {
        self.budget.give_rows(slots as u64 * self.slot_bytes());
    }

    /// Whether the index may grow by `bytes` and leave the rows a minimum.
    ///
    /// # Errors
    /// [`StoreError::MemoryTooSmall`] with the least memory that would do.
    pub(crate) fn check_index_growth(&self, bytes: u64) -> Result<(), StoreError> {
        let rows_min = (self.shards * SLOTS_MIN) as u64 * self.slot_bytes();
        let needed = self.budget.needed(rows_min) + bytes;
        if needed <= self.budget.memory() {
            return Ok(());
        }
        Err(StoreError::MemoryTooSmall {
            given: self.budget.memory(),
            needed: needed + needed / 4,
            what: format!("the index of the rows born so far ({} bytes) with its buffers", self.budget.index_bytes() + bytes),
        })
    }

    /// Fill `row` (`stride / 4` floats) as a row that was never seen.
    pub(crate) fn initialize(&self, key: RowKey, row: &mut [f32]) {
        let (weights, rest) = row.split_at_mut(self.layout.dim);
        initialize(&self.spec.initializer, self.seed, key.category.0, key.id, weights);
        let (state, padding) = rest.split_at_mut(self.layout.state_floats);
        state.fill(self.spec.optimizer.initial_state());
        padding.fill(0.0);
    }

    /// Append a row to the log.
    ///
    /// # Errors
    /// When the log is poisoned or full.
    pub(crate) fn append(&self, key: RowKey, bytes: &[u8]) -> Result<u32, StoreError> {
        Ok(self.log.append(key, bytes)?)
    }

    /// The hash the cache policy knows a row by.
    #[inline]
    pub(crate) fn policy_hash(&self, table: u32, id: u64) -> u64 {
        let mixed = (id ^ (u64::from(table) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}
