//! Restores the index of a shard from a checkpoint.

use rowmill_index::Location;

use super::core::Core;
use super::shard::Shard;
use crate::error::StoreError;
use crate::memory::Purpose;

/// Indexes of shards up to this size are not reserved. Larger ones exceed their need by less than a twentieth.
const RESERVED_BYTES_MIN: usize = 128 << 10;

impl Shard {
    /// Reserve index memory for `rows` more rows of a table, if the budget allows it. Small indexes grow
    /// as they are loaded: reserved for the fullest shard, they could take twice the pages that they need.
    pub(crate) fn reserve(&mut self, core: &Core, table: u32, rows: usize) {
        let index = &mut self.indexes[table as usize];
        let growth = index.grow_bytes_if_inserting(rows);
        if growth > RESERVED_BYTES_MIN && core.check_index_growth(growth as u64, Purpose::Grow).is_ok() {
            index.reserve(rows);
            self.charge_index(core);
        }
    }

    /// The row number of a row that was restored.
    pub(crate) fn restored(&self, table: u32, id: u64) -> Option<u32> {
        let index = self.index(table);
        index.location(index.find(id)?).row()
    }

    /// Take exactly the index memory that the restored rows need.
    ///
    /// Room in an index takes new rows without asking for memory. If a store that exceeds its memory had such
    /// room, it would exceed it by more each time it is opened, and in the end could not be opened.
    pub(crate) fn fit_indexes(&mut self, core: &Core) {
        self.indexes.iter_mut().for_each(|index| index.fit(0));
        self.charge_index(core);
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
                if growth > 0 && core.check_index_growth(growth as u64, Purpose::Grow).is_err() {
                    // Little memory is left: take what this row needs, without a reserve for further ones.
                    let growth = index.bytes_to_fit(1) - index.bytes();
                    core.check_index_growth(growth as u64, Purpose::Open)?;
                    index.fit(1);
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
