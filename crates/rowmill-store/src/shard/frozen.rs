//! Checkpointing of a shard: the cut, and saving the frozen rows afterwards.

use super::core::Core;
use super::shard::{NO_ROW, Shard, SlotMeta};
use crate::error::StoreError;

impl Shard {
    /// The cut: all rows that are dirty now belong to the checkpoint.
    pub(crate) fn freeze(&mut self) {
        debug_assert_eq!(self.frozen.count(), 0, "one checkpoint at a time");
        std::mem::swap(&mut self.dirty, &mut self.frozen);
        self.dirty.grow(self.slots);
        self.save_from = 0;
    }

    /// Save up to `rows` frozen rows. Returns how many were saved, and whether there are more.
    pub(crate) fn save_some(&mut self, core: &Core, rows: usize) -> Result<(usize, bool), StoreError> {
        for saved in 0..rows {
            let Some(slot) = self.frozen.first_from(self.save_from) else { return Ok((saved, false)) };
            self.save_frozen(core, slot)?;
            self.save_from = slot;
        }
        Ok((rows, self.frozen.count() > 0))
    }

    /// Number of rows that the next checkpoint has to save.
    pub(crate) fn dirty_rows(&self) -> usize {
        self.dirty.count() + self.frozen.count()
    }

    /// Append a frozen row for the checkpoint that froze it. Its slot is then clean.
    pub(super) fn save_frozen(&mut self, core: &Core, slot: u32) -> Result<u32, StoreError> {
        let meta = self.meta[slot as usize];
        let row = core.log.append(self.key(meta.table, meta.id), self.bytes_of(core, slot))?;
        core.index_log.record_frozen(self.key(meta.table, meta.id), Some(row));
        core.log.append_to_cut(row);
        self.meta[slot as usize] = SlotMeta { row, ..meta };
        self.frozen.clear(slot);
        Ok(row)
    }

    /// Visit the rows of a table whose current version is on the device, with their row numbers.
    pub(crate) fn on_device(&self, table: u32, mut visit: impl FnMut(u64, u32)) {
        self.index(table).for_each(|id, location| {
            let row =
                location.slot().map_or_else(|| location.row(), |slot| Some(self.meta[slot as usize].row));
            if let Some(row) = row.filter(|&row| row != NO_ROW) {
                visit(id, row);
            }
        });
    }
}
