//! Changes collected under the locks of shards, before they become frames.

use std::collections::HashMap;
use std::sync::Arc;

use super::frame::FeedChange;
use super::writer::FeedWriter;
use crate::error::StoreError;
use crate::table::TableState;

/// Bytes of a frame, but for a row that is wider.
const FRAME_BYTES: usize = 64 << 10;

/// Changes in order. Of one table, rows and deletes come in separate runs; later runs are newer.
#[derive(Debug, Default)]
pub(super) struct Runs {
    queue: Vec<Run>,
    /// The run of each table (by category) that may still grow.
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
    /// A row of `table` has these weights, or is gone.
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

    /// Forget everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes collected.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Append everything to the feed; how many rows that is.
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
