//! Frees the memory of a shard when its store is closed.

use std::sync::Arc;

use rowmill_index::TableIndex;

use super::core::Core;
use super::shard::Shard;
use crate::error::StoreError;

impl Shard {
    /// Free the memory of rows and indexes. The shard is then empty, as shard `number` of the group.
    ///
    /// # Errors
    /// When the system refuses address space; the shard is then unchanged.
    pub(crate) fn empty(&mut self, core: &Core, number: usize) -> Result<(), StoreError> {
        let mut empty = Self::new(core, self.meta.len(), 0)?;
        core.give_rows(self.slots);
        core.budget.resize_index(self.index_bytes, 0);
        if !core.budget.rows_are_fixed() {
            core.budget.resize_fixed(self.coming.bytes() as u64, 0);
        }
        for table in &self.tables {
            let index = TableIndex::new(table.spec.ids, number, core.shards);
            empty.add_table(core, Arc::clone(table), index);
        }
        // Readers that found a row before must look it up again.
        (empty.moves, empty.edits) = (self.moves + 1, self.edits + 1);
        empty.spills = self.spills;
        *self = empty;
        Ok(())
    }
}
