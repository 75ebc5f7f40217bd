//! State that all shards of a group share: layout, optimizer, log and budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rowmill_kernels::RowUpdater;
use rowmill_log::Log;
use rowmill_rows::{Dtype, GroupSpec, RowKey, RowLayout};

use super::feed_backlog::FeedBacklog;
use super::shard::{SLOT_OVERHEAD_BYTES, SLOTS_MIN};
use crate::error::StoreError;
use crate::files::{IndexLog, Move};
use crate::memory::{Budget, Purpose};
use crate::table::{TableState, set_stamp, write_weights};

/// 1/8 of the row places is reserved for cleaning.
const KEPT_FOR_CLEANING: u64 = 8;
/// Segments that may be open, or sealed before they are full: two streams, before and after a cut.
const PLACES_OPEN: u32 = 4;

#[derive(Debug)]
pub(crate) struct Core {
    /// Number of the group within the store.
    pub(crate) number: u32,
    pub(crate) spec: GroupSpec,
    pub(crate) layout: RowLayout,
    /// Bytes of a segment of the log, fixed when the group was created.
    pub(crate) segment_bytes: usize,
    pub(crate) updater: RowUpdater,
    pub(crate) log: Log,
    /// Bytes last charged to the budget for the log's memory, and for its scratch memory for reads.
    pub(crate) log_charged: AtomicU64,
    pub(crate) scratch_charged: AtomicU64,
    pub(crate) index_log: Arc<IndexLog>,
    pub(crate) budget: Arc<Budget>,
    /// Changes that wait to be published; `None` without a feed.
    pub(crate) waiting: Option<Arc<FeedBacklog>>,
    /// Number of shards of the group.
    pub(crate) shards: usize,
    /// Memory of the group's resident rows.
    pub(crate) used_bytes: AtomicU64,
    /// Limit on the memory of the group while other groups lack memory.
    pub(crate) cap_bytes: AtomicU64,
    /// Number of spills when memory was last balanced.
    pub(crate) spills_seen: AtomicU64,
}

impl Drop for Core {
    /// Remove the charges of the log: a group that cannot be made leaves none.
    fn drop(&mut self) {
        self.budget.resize_log_buffers(self.log_charged.load(Relaxed), 0);
        self.budget.resize_fixed(self.scratch_charged.load(Relaxed), 0);
    }
}

impl Core {
    /// Bytes charged to the budget per slot.
    pub(crate) fn slot_bytes(&self) -> u64 {
        let overhead = if self.budget.rows_are_fixed() { 0 } else { SLOT_OVERHEAD_BYTES };
        (self.layout.stride + overhead) as u64
    }

    /// Slots per shard if the available memory is divided equally.
    pub(crate) fn shard_slots(&self) -> usize {
        let bytes = self.budget.row_limit().min(self.cap_bytes.load(Relaxed));
        (bytes / self.slot_bytes()) as usize / self.shards
    }

    /// Slots of the group in memory.
    fn slots(&self) -> u64 {
        self.used_bytes() / self.slot_bytes()
    }

    /// Row places of the log that births and spills must leave free, given the number of slots in memory.
    ///
    /// All rows in memory may change before the next checkpoint, which must not overwrite the last one. The
    /// old versions that it leaves behind are scattered over segments. Until they are cleaned, the checkpoint
    /// after it needs the same number of places again. Cleaning also takes places before it frees any.
    fn places_kept(&self, slots: u64) -> u32 {
        self.places_of(2 * slots + self.log.row_limit() / KEPT_FOR_CLEANING) + 2 * PLACES_OPEN
    }

    /// Places that a spill must leave free now.
    pub(crate) fn places_kept_now(&self) -> u32 {
        self.places_kept(self.slots())
    }

    /// Whether `slots` more slots leave enough places free.
    pub(crate) fn has_places_for(&self, slots: usize) -> bool {
        self.log.free_places() >= self.places_kept(self.slots() + slots as u64)
    }

    /// Whether a checkpoint of all rows in memory still has enough places after a segment is cleaned.
    pub(crate) fn has_places_to_clean(&self) -> bool {
        self.log.free_places() > self.places_of(self.slots()) + PLACES_OPEN
    }

    /// Check that enough places are free for a checkpoint of `rows` changed rows.
    ///
    /// # Errors
    /// [`StoreError::NoPlaces`].
    pub(crate) fn check_places_for(&self, rows: usize) -> Result<(), StoreError> {
        if self.log.free_places() >= self.places_of(rows as u64) + PLACES_OPEN {
            return Ok(());
        }
        let (used, limit) = self.log.row_numbers();
        Err(StoreError::NoPlaces { group: self.number, used, limit })
    }

    /// Places that `rows` rows use.
    fn places_of(&self, rows: u64) -> u32 {
        rows.div_ceil(u64::from(self.log.geometry().rows_per_segment())) as u32
    }

    /// Compaction moves a row that only versions of the store name. The caller holds the lock of a shard, so that
    /// the move is not in a cut. Returns whether any version names it.
    ///
    /// # Errors
    /// When the row cannot be written.
    pub(crate) fn relocate_kept(&self, key: RowKey, old: u32, bytes: &[u8]) -> Result<bool, StoreError> {
        let Some(new) = self.log.move_kept(old, key, bytes)? else { return Ok(false) };
        self.index_log.record_move(Move { key, group: self.number, old, new });
        Ok(true)
    }

    /// Take memory for `slots` slots if the budget allows it. Returns whether it did.
    pub(crate) fn take_rows(&self, slots: usize) -> bool {
        let bytes = slots as u64 * self.slot_bytes();
        let taken = self.used_bytes() + bytes <= self.cap_bytes.load(Relaxed) && self.budget.take_rows(bytes);
        if taken {
            self.used_bytes.fetch_add(bytes, Relaxed);
        }
        taken
    }

    /// Take memory for the few slots that a shard needs to work at all.
    pub(crate) fn force_rows(&self, slots: usize) -> bool {
        self.used_bytes.fetch_add(slots as u64 * self.slot_bytes(), Relaxed);
        self.budget.force_rows(slots as u64 * self.slot_bytes());
        true
    }

    /// Return the memory of `slots` slots.
    pub(crate) fn give_rows(&self, slots: usize) {
        self.used_bytes.fetch_sub(slots as u64 * self.slot_bytes(), Relaxed);
        self.budget.give_rows(slots as u64 * self.slot_bytes());
    }

    /// Memory of the group's resident rows.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// Charge the budget for the current memory of the log; its tables grow with the device.
    pub(crate) fn charge_log(&self) {
        let bytes = self.log.bytes() as u64;
        let before = self.log_charged.load(Relaxed);
        if bytes > before {
            // Rows leave memory whenever the charge grows. Charging a sixteenth more than needed keeps this
            // rare.
            let bytes = if before == 0 { bytes } else { bytes + bytes / 16 };
            self.budget.resize_log_buffers(self.log_charged.swap(bytes, Relaxed), bytes);
        }
        let scratch = self.log.scratch_bytes() as u64;
        self.budget.resize_fixed(self.scratch_charged.swap(scratch, Relaxed), scratch);
    }

    /// The minimum memory of resident rows: every shard needs a few slots.
    pub(crate) fn rows_min(&self) -> u64 {
        (self.shards * SLOTS_MIN) as u64 * self.slot_bytes()
    }

    /// Take memory for an index that grows by `bytes`, if that leaves the minimum of rows.
    ///
    /// # Errors
    /// [`StoreError::MemoryTooSmall`] with the smallest sufficient memory.
    pub(crate) fn take_index(&self, bytes: usize, purpose: Purpose) -> Result<(), StoreError> {
        let bytes = bytes as u64;
        if self.budget.take_index(bytes, self.rows_min(), purpose) {
            return Ok(());
        }
        let index = self.budget.index_bytes() + bytes;
        let what = format!("the index of the rows created so far ({index} bytes) with its buffers");
        Err(self.too_small(bytes, what))
    }

    /// Check that there is room for `bytes` besides the minimum of rows.
    ///
    /// # Errors
    /// [`StoreError::MemoryTooSmall`] with the smallest sufficient memory for `what`.
    pub(crate) fn check_room(&self, bytes: u64, what: impl FnOnce() -> String) -> Result<(), StoreError> {
        if self.budget.allows(self.rows_min() + bytes, Purpose::Grow) {
            return Ok(());
        }
        Err(self.too_small(bytes, what()))
    }

    /// The memory is too small for `bytes` more, for `what`.
    fn too_small(&self, bytes: u64, what: String) -> StoreError {
        let needed = self.budget.needed(self.rows_min() + bytes);
        let (option, given) = ("memory", self.budget.memory());
        StoreError::MemoryTooSmall { option, given, needed: needed + needed / 4, what }
    }

    /// Fill `row` (`stride / 4` floats) with the initial values of a new row of `table`.
    pub(crate) fn initialize(&self, table: &TableState, id: u64, row: &mut [f32]) {
        let (weights, rest) = row.split_at_mut(self.layout.state_offset() / 4);
        self.initialize_weights(table, id, weights);
        let (state, padding) = rest.split_at_mut(self.layout.state_floats);
        self.spec.optimizer.initialize_state(state);
        padding.fill(0.0);
        set_stamp(&self.layout, row, table.birth_stamp());
    }

    /// Fill `row`, a row up to its state, with the initial weights of a new row of `table`.
    pub(crate) fn initialize_weights(&self, table: &TableState, id: u64, row: &mut [f32]) {
        if self.layout.dtype == Dtype::F32 {
            table.initializer.fill(id, row);
            return;
        }
        let mut weights = vec![0.0; self.layout.dim];
        table.initializer.fill(id, &mut weights);
        row.fill(0.0);
        // SAFETY: these are the weights of a row, exclusively borrowed.
        unsafe { write_weights(&self.layout, &weights, row.as_mut_ptr()) };
    }

    /// The hash that identifies a row in the cache policy.
    #[inline]
    pub(crate) fn policy_hash(table: u32, id: u64) -> u64 {
        let mixed = (id ^ (u64::from(table) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}
