//! Rows of a shard that changed since they were last published; nothing where no feed is kept.

use std::sync::Arc;

use super::{Shard, SlotMeta};
use crate::bits::Bits;
use crate::core::Core;
use crate::table_state::TableState;
use crate::weights::floats_of;

/// Slots whose rows changed, and rows that changed and left memory since.
#[derive(Debug, Default)]
pub(super) struct Unpublished {
    /// Slots with a row that changed.
    pub(super) slots: Bits,
    left: Vec<Left>,
    weights: Vec<f32>,
}

/// A row that changed and has no slot any more.
#[derive(Debug)]
struct Left {
    id: u64,
    table: u32,
    deleted: bool,
}

impl Unpublished {
    /// A changed row leaves memory with these weights, or is deleted.
    pub(super) fn leave(&mut self, table: u32, id: u64, weights: Option<&[f32]>) {
        self.left.push(Left { id, table, deleted: weights.is_none() });
        self.weights.extend_from_slice(weights.unwrap_or_default());
    }

    /// Hand out the rows that left, in the order they did: `visit(table, id, weights)`.
    fn take_left(&mut self, dim: usize, mut visit: impl FnMut(u32, u64, Option<&[f32]>)) {
        let mut weights = self.weights.chunks_exact(dim);
        for Left { id, table, deleted } in self.left.drain(..) {
            let weights = if deleted { None } else { weights.next() };
            visit(table, id, weights);
        }
        self.weights.clear();
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes() + self.left.capacity() * size_of::<Left>() + self.weights.capacity() * 4
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

    /// Nobody publishes any more.
    pub(crate) fn stop_publishing(&mut self) {
        self.unpublished = None;
    }

    /// The row in `slot` leaves memory.
    pub(super) fn leave_unpublished(&mut self, core: &Core, slot: u32, meta: SlotMeta) {
        let row = self.row(core, slot);
        if let Some(unpublished) = &mut self.unpublished
            && unpublished.slots.get(slot)
        {
            let mut scratch = Vec::new();
            // SAFETY: the slot holds a row, and the exclusive borrow excludes writers.
            let weights = unsafe { floats_of(&core.layout, row, &mut scratch) };
            unpublished.leave(meta.table, meta.id, Some(weights));
        }
    }

    /// Hand out up to `rows` resident rows that changed since the last time, from slot `from` on, after all that
    /// left memory since: `visit(table, id, weights)`, without weights for deleted ones. Whether there are more.
    pub(crate) fn take_unpublished(
        &mut self,
        core: &Core,
        from: &mut u32,
        rows: usize,
        mut visit: impl FnMut(&Arc<TableState>, u64, Option<&[f32]>),
    ) -> bool {
        let Some(mut unpublished) = self.unpublished.take() else { return false };
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
            let meta = self.meta.get(slot as usize);
            // SAFETY: as in `leave_unpublished`.
            let weights = unsafe { floats_of(&core.layout, self.row(core, slot), &mut scratch) };
            visit(&self.tables[meta.table as usize], meta.id, Some(weights));
            *from = slot;
            taken += 1;
        }
        self.unpublished = Some(unpublished);
        more
    }
}
