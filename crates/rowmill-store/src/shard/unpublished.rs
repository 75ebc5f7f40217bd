//! Changed rows of a shard that the feed has not published; unused without a feed.

use std::sync::Arc;

use super::core::Core;
use super::feed_backlog::FeedBacklog;
use super::shard::{Shard, SlotMeta};
use super::slot_bits::SlotBits;
use crate::table::{TableState, floats_of};

/// Bytes of buffers that a shard keeps allocated while no rows wait in them.
const KEPT_BYTES: usize = 64 << 10;

/// Slots whose rows changed, and changed rows that have left memory.
#[derive(Debug)]
pub(super) struct Unpublished {
    /// Slots whose row changed.
    pub(super) slots: SlotBits,
    left: Vec<Left>,
    weights: Vec<f32>,
    /// Limits the bytes of `left` and `weights` over all shards.
    waiting: Arc<FeedBacklog>,
}

/// A changed row that has no slot any more.
#[derive(Debug)]
struct Left {
    id: u64,
    table: u32,
    deleted: bool,
}

impl Unpublished {
    /// No changes yet, in a shard with `slots` slots.
    pub(super) fn new(slots: usize, waiting: &Arc<FeedBacklog>) -> Self {
        let mut bits = SlotBits::default();
        bits.grow(slots);
        Self { slots: bits, left: Vec::new(), weights: Vec::new(), waiting: Arc::clone(waiting) }
    }

    /// A changed row leaves memory with these weights, or is deleted (`None`). Returns whether it fits within
    /// the limit.
    pub(super) fn leave(&mut self, table: u32, id: u64, weights: Option<&[f32]>) -> bool {
        let fits = self.waiting.add(size_of::<Left>() + weights.map_or(0, size_of_val));
        if fits {
            self.left.push(Left { id, table, deleted: weights.is_none() });
            self.weights.extend_from_slice(weights.unwrap_or_default());
        }
        fits
    }

    /// Bytes of rows that wait.
    pub(super) fn waits(&self) -> usize {
        size_of_val(&self.left[..]) + size_of_val(&self.weights[..])
    }

    /// Take the rows that left memory, in that order: `visit(table, id, weights)`.
    pub(super) fn take_left(&mut self, dim: usize, mut visit: impl FnMut(u32, u64, Option<&[f32]>)) {
        self.waiting.remove(self.waits());
        let mut weights = self.weights.chunks_exact(dim);
        for Left { id, table, deleted } in self.left.drain(..) {
            let weights = if deleted { None } else { weights.next() };
            visit(table, id, weights);
        }
        self.weights.clear();
        // Otherwise every shard would keep the memory of its largest backlog.
        self.left.shrink_to(KEPT_BYTES / size_of::<Left>());
        self.weights.shrink_to(KEPT_BYTES / size_of::<f32>());
    }

    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes() + self.left.capacity() * size_of::<Left>() + self.weights.capacity() * 4
    }
}

impl Drop for Unpublished {
    fn drop(&mut self) {
        self.waiting.remove(self.waits());
    }
}

impl Shard {
    /// The row in `slot` is about to change.
    #[inline]
    pub(super) fn mark_unpublished(&mut self, slot: u32) {
        if let Some(unpublished) = &mut self.unpublished {
            unpublished.slots.set(slot);
        }
    }

    /// Start to collect changes; earlier changes are not published.
    pub(crate) fn begin_publishing(&mut self, waiting: &Arc<FeedBacklog>) {
        self.unpublished = Some(Unpublished::new(self.slots, waiting));
    }

    /// Stop collecting changes.
    pub(crate) fn stop_publishing(&mut self) {
        self.unpublished = None;
    }

    /// The row in `slot` leaves memory.
    pub(super) fn leave_unpublished(&mut self, core: &Core, slot: u32, meta: SlotMeta) {
        if self.unpublished.as_ref().is_some_and(|unpublished| unpublished.slots.get(slot)) {
            let mut scratch = Vec::new();
            // SAFETY: the slot holds a row, and the exclusive borrow excludes writers.
            let weights = unsafe { floats_of(&core.layout, self.row(core, slot), &mut scratch) };
            self.wait_unpublished(meta.table, meta.id, Some(weights));
        }
    }

    /// A changed row leaves memory with these weights, or is deleted. If it exceeds the limit, the shard
    /// stops collecting, which the next round of publishing notices.
    pub(super) fn wait_unpublished(&mut self, table: u32, id: u64, weights: Option<&[f32]>) {
        if let Some(unpublished) = &mut self.unpublished
            && !unpublished.leave(table, id, weights)
        {
            self.stop_publishing();
        }
    }

    /// Take all changed rows that left memory, then up to `rows` changed resident rows from slot `from` on:
    /// `visit(table, id, weights)`, with `None` for deleted rows. Returns whether there are more, or `None`
    /// if the shard has stopped collecting.
    pub(crate) fn take_unpublished(
        &mut self,
        core: &Core,
        from: &mut u32,
        rows: usize,
        mut visit: impl FnMut(&Arc<TableState>, u64, Option<&[f32]>),
    ) -> Option<bool> {
        let mut unpublished = self.unpublished.take()?;
        unpublished.take_left(core.layout.dim, |table, id, weights| {
            visit(&self.tables[table as usize], id, weights);
        });
        let (mut taken, mut scratch) = (0, Vec::new());
        let mut more = true;
        while taken < rows {
            let Some(slot) = unpublished.slots.first_from(*from) else {
                more = false;
                break;
            };
            unpublished.slots.clear(slot);
            let meta = self.meta[slot as usize];
            // SAFETY: as in `leave_unpublished`.
            let weights = unsafe { floats_of(&core.layout, self.row(core, slot), &mut scratch) };
            visit(&self.tables[meta.table as usize], meta.id, Some(weights));
            *from = slot;
            taken += 1;
        }
        self.unpublished = Some(unpublished);
        Some(more)
    }
}
