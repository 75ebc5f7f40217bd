//! Restores the index of a shard from a checkpoint.

use rowmill_index::Location;

use super::core::Core;
use super::shard::Shard;
use crate::error::StoreError;

impl Shard {
    /// Reserve index memory for `rows` more rows of a table, if the budget allows it.
    pub(crate) fn reserve(&mut self, core: &Core, table: u32, rows: usize) {
        let index = &mut self.indexes[table as usize];
        if core.check_index_growth(index.grow_bytes_if_inserting(rows) as u64).is_ok() {
            index.reserve(rows);
            self.charge_index(core);
        }
    }

    /// The row number of a row that was restored.
    pub(crate) fn restored(&self, table: u32, id: u64) -> Option<u32> {
        let index = self.index(table);
        index.location(index.find(id)?).row()
    }

    /// Insert a row of a checkpoint into the index.
    ///
    /// # Errors
    /// When the index exceeds the budget.
    pub(crate) fn restore(
        &mut self,
        core: &Core,
        table: u32,
        id: u64,
        row: Option<u32>,
    ) -> Result<(), StoreError> {
        let index = &mut self.indexes[table as usize];
        match (index.find(id), row) {
            (Some(entry), Some(row)) => index.set_location(entry, Location::device(row)),
            (None, Some(row)) => {
                let growth = index.grow_bytes_if_inserting(1);
                if growth > 0 {
                    core.check_index_growth(growth as u64)?;
                }
                index.insert(id, Location::device(row));
                if growth > 0 {
                    self.charge_index(core);
                }
            }
            (Some(_), None) => {
                index.remove(id);
            }
            (None, None) => {}
        }
        Ok(())
    }
}
