//! The index of a shard as a checkpoint had it.

use rowmill_index::Location;

use super::core::Core;
use super::shard::Shard;
use crate::error::StoreError;

impl Shard {
    /// Make room in the index of a table for `rows` more, if the budget has it.
    pub(crate) fn reserve(&mut self, core: &Core, table: u32, rows: usize) {
        let index = &mut self.indexes[table as usize];
        if core.check_index_growth(index.grow_bytes_if_inserting(rows) as u64).is_ok() {
            index.reserve(rows);
            self.charge_index(core);
        }
    }

    /// Enter a row found in a checkpoint.
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
