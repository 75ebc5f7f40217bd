//! Restores the index of a shard from a checkpoint.

use rowmill_index::Location;

use super::core::Core;
use super::shard::Shard;
use crate::error::StoreError;
use crate::memory::Purpose;

/// Exact indexes of shards up to this size are not reserved, because rounding to pages could double them.
const RESERVED_BYTES_MIN: usize = 128 << 10;
/// An exact index that is loaded grows by 1/128, or by one page.
const GROWTH_SHARE: usize = 128;

/// How large indexes become when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexSize {
    /// With room for the fullest shard and for rows to come. Nothing is moved while it is loaded.
    Roomy,
    /// As large as its rows need. It is loaded in small steps, which move its entries.
    Exact,
}

impl Shard {
    /// Reserve index memory for `rows` more rows of a table, if the budget allows it.
    pub(crate) fn reserve(&mut self, core: &Core, table: u32, rows: usize, size: IndexSize) {
        let index = &mut self.indexes[table as usize];
        let growth = index.grow_bytes_if_inserting(rows);
        if size == IndexSize::Exact && growth <= RESERVED_BYTES_MIN {
            return;
        }
        if core.take_index(growth, Purpose::Grow).is_ok() {
            self.index_bytes += growth;
            index.reserve(rows);
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
        size: IndexSize,
    ) -> Result<(), StoreError> {
        let index = &mut self.indexes[table as usize];
        match (index.find(id), row) {
            (Some(entry), Some(row)) => index.set_location(entry, Location::device(row)),
            (None, Some(row)) => {
                let growth = index.grow_bytes_if_inserting(1);
                if growth > 0 {
                    self.index_bytes +=
                        if size == IndexSize::Roomy && core.take_index(growth, Purpose::Grow).is_ok() {
                            growth
                        } else {
                            let rows = (index.len() / GROWTH_SHARE).max(1);
                            let growth = index.bytes_to_fit(rows) - index.bytes();
                            core.take_index(growth, Purpose::Open)?;
                            index.fit(rows);
                            growth
                        };
                }
                index.insert(id, Location::device(row));
            }
            (Some(_), None) => {
                index.remove(id);
            }
            (None, None) => {}
        }
        Ok(())
    }
}
