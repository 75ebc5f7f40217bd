//! Rows of a shard that changed since they were last published; nothing where no feed is kept.

use crate::bits::Bits;
use crate::shard::Shard;

/// Slots whose rows changed, and rows that changed and left memory since.
#[derive(Debug, Default)]
pub(crate) struct Unpublished {
    /// Slots with a row that changed.
    pub(crate) slots: Bits,
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
    pub(crate) fn leave(&mut self, table: u32, id: u64, weights: Option<&[f32]>) {
        self.left.push(Left { id, table, deleted: weights.is_none() });
        self.weights.extend_from_slice(weights.unwrap_or_default());
    }

    /// Hand out the rows that left, in the order they did: `visit(table, id, weights)`.
    pub(crate) fn take_left(&mut self, dim: usize, mut visit: impl FnMut(u32, u64, Option<&[f32]>)) {
        let mut weights = self.weights.chunks_exact(dim);
        for Left { id, table, deleted } in self.left.drain(..) {
            let weights = if deleted { None } else { weights.next() };
            visit(table, id, weights);
        }
        self.weights.clear();
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes() + self.left.capacity() * size_of::<Left>() + self.weights.capacity() * 4
    }
}

impl Shard {
    /// The row in `slot` is about to change.
    #[inline]
    pub(crate) fn mark_unpublished(&mut self, slot: u32) {
        if let Some(unpublished) = &mut self.unpublished {
            unpublished.slots.set(slot);
        }
    }

    /// Nobody publishes any more.
    pub(crate) fn stop_publishing(&mut self) {
        self.unpublished = None;
    }
}
