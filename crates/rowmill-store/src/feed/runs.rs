//! Collects changes under the locks of shards, before they are written as frames.

use std::collections::HashMap;
use std::sync::Arc;

use super::frame::FeedChange;
use super::writer::FeedWriter;
use crate::error::StoreError;
use crate::table::TableState;

/// Maximum bytes of a frame, unless one row is wider.
const FRAME_BYTES: usize = 64 << 10;

/// Changes in order. Rows and deletes of one table are in separate runs; later runs are newer.
#[derive(Debug, Default)]
pub(super) struct Runs {
    queue: Vec<Run>,
    /// For each table (by category), the run that may still grow.
    growing: HashMap<u32, usize>,
    bytes: usize,
}

#[derive(Debug)]
struct Run {
    table: Arc<TableState>,
    ids: Vec<u64>,
    weights: Vec<f32>,
    deletes: bool,
}

impl Runs {
    /// Add a row of `table` with these weights, or its deletion (`None`).
    pub(super) fn push(&mut self, table: &Arc<TableState>, id: u64, weights: Option<&[f32]>) {
        let bytes = 8 + weights.map_or(0, size_of_val);
        let deletes = weights.is_none();
        let fits = |run: &Run| {
            let used = run.ids.len() * 8 + run.weights.len() * 4;
            run.deletes == deletes && used + bytes <= FRAME_BYTES
        };
        let growing = self.growing.get(&table.category.0).copied().filter(|&run| fits(&self.queue[run]));
        let number = growing.unwrap_or_else(|| {
            self.queue.push(Run { table: Arc::clone(table), ids: Vec::new(), weights: Vec::new(), deletes });
            self.growing.insert(table.category.0, self.queue.len() - 1);
            self.queue.len() - 1
        });
        let run = &mut self.queue[number];
        run.ids.push(id);
        run.weights.extend_from_slice(weights.unwrap_or_default());
        self.bytes += bytes;
    }

    /// Drop everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Number of bytes collected.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Append everything to the feed. Returns the number of rows.
    pub(super) fn write(&mut self, writer: &mut FeedWriter) -> Result<u64, StoreError> {
        let mut rows = 0;
        self.growing.clear();
        self.bytes = 0;
        for Run { table, ids, weights, deletes } in self.queue.drain(..) {
            rows += ids.len() as u64;
            let (name, step) = (table.name.clone(), table.steps());
            writer.append(&if deletes {
                FeedChange::Deleted { table: name, step, ids }
            } else {
                FeedChange::Rows { table: name, step, dim: table.spec.dim as usize, ids, weights }
            })?;
        }
        Ok(rows)
    }
}
