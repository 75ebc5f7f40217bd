//! Rows leave the memory of a shard, or are deleted.

use rowmill_index::{Location, hash, prefetch, prefetch_bytes};
use rowmill_rows::RowKey;

use super::core::Core;
use super::s3fifo::Standing;
use super::shard::{NO_ROW, SLOTS_MIN, Shard, SlotMeta, VACANT};
use crate::error::StoreError;
use crate::files::Move;

impl Shard {
    /// Free the slot of the row least worth keeping, and return the slot.
    pub(super) fn spill(&mut self, core: &Core) -> Result<u32, StoreError> {
        self.crowded = true;
        let (meta, due) = (&self.meta, &self.due);
        let indexes = std::cell::RefCell::new(&mut self.indexes);
        let entry = |slot: u32| {
            let row = meta[slot as usize];
            let entry = indexes.borrow()[row.table as usize].find(row.id).expect("a resident row is indexed");
            (row, entry)
        };
        let victim = self.policy.give_up(
            |slot| {
                if meta[slot as usize].table == VACANT {
                    return Standing::Vacant;
                }
                // Checked first: when memory is full of announced rows, most searches pass several of them.
                if due.is_held(slot) {
                    return Standing::Held;
                }
                let (row, entry) = entry(slot);
                let indexes = indexes.borrow();
                let index = &indexes[row.table as usize];
                if index.clock(entry) > 0 { Standing::Held } else { Standing::Uses(index.frequency(entry)) }
            },
            |slot| {
                let row = meta[slot as usize];
                Core::policy_hash(row.table, row.id)
            },
            |slot, all| {
                let (row, entry) = entry(slot);
                let mut indexes = indexes.borrow_mut();
                let index = &mut indexes[row.table as usize];
                let uses = if all { 0 } else { index.frequency(entry) - 1 };
                index.set_frequency(entry, uses);
            },
        );
        let victim = victim.expect("a shard has slots before it spills a row");
        let meta = self.meta[victim as usize];
        if let Err(error) = self.vacate(core, victim) {
            // The row stays in its slot; the policy removed the slot from its queues when it chose it.
            self.policy.admit(victim, Core::policy_hash(meta.table, meta.id));
            return Err(error);
        }
        self.prefetch_victim(core);
        Ok(victim)
    }

    /// Prefetch what the next call of [`Shard::spill`] will read. Finding a victim takes three dependent
    /// cache misses.
    pub(super) fn prefetch_victim(&self, core: &Core) {
        let Some((first, second)) = self.policy.upcoming() else { return };
        let meta = self.meta[first as usize];
        if meta.table != VACANT {
            self.index(meta.table).prefetch(meta.id, hash(meta.id));
        }
        prefetch_bytes(self.row(core, first), core.layout.stride);
        if let Some(second) = second {
            prefetch(self.meta.pointer(second as usize));
            self.policy.prefetch(second);
        }
    }

    /// Spill rows after `bytes` were taken for this shard, and before they are used. Indexes of a group grow at
    /// about the same time. If rows left only afterwards, all these indexes together would exceed the budget.
    pub(super) fn make_room(&mut self, core: &Core, bytes: usize) -> Result<(), StoreError> {
        let over = core.budget.rows_over().min(bytes as u64);
        let slots = over.div_ceil(core.slot_bytes()) as usize;
        // At most half of the slots are given up here; the other shards give up the rest afterwards.
        self.shrink(core, self.slots - slots.min(self.slots / 2)).map(drop)
    }

    /// Move the row in `slot`, if any, out of memory.
    pub(super) fn vacate(&mut self, core: &Core, slot: u32) -> Result<(), StoreError> {
        let meta = self.meta[slot as usize];
        if meta.table == VACANT {
            return Ok(());
        }
        let row = if self.frozen.get(slot) {
            self.save_frozen(core, slot)?
        } else if self.dirty.get(slot) {
            let row = core.log.append_keeping(
                core.places_kept_now(),
                self.key(meta.table, meta.id),
                self.bytes_of(core, slot),
            )?;
            core.index_log.record(self.key(meta.table, meta.id), Some(row));
            row
        } else {
            meta.row
        };
        let index = &mut self.indexes[meta.table as usize];
        let entry = index.find(meta.id).expect("a resident row is indexed");
        index.set_location(entry, Location::device(row));
        index.set_frequency(entry, 0);
        self.edits += 1;
        self.leave_unpublished(core, slot, meta);
        self.clear_slot(slot);
        self.spills += 1;
        Ok(())
    }

    pub(super) fn clear_slot(&mut self, slot: u32) {
        self.meta[slot as usize] = SlotMeta { id: 0, table: VACANT, row: NO_ROW };
        self.occupied -= 1;
        self.dirty.clear(slot);
        self.frozen.clear(slot);
        self.due.clear(slot);
        if let Some(unpublished) = &mut self.unpublished {
            unpublished.slots.clear(slot);
        }
        self.moves += 1;
    }

    pub(super) fn bytes_of(&self, core: &Core, slot: u32) -> &[u8] {
        assert!((slot as usize) < self.slots, "slot {slot} is outside the {} slots of the shard", self.slots);
        // SAFETY: the slot is within the shard and holds a row of `stride` initialized bytes. `&self` under
        // the shard's lock excludes writers.
        unsafe { std::slice::from_raw_parts(self.row(core, slot).cast::<u8>(), core.layout.stride) }
    }

    /// Delete a row. Returns whether it existed.
    ///
    /// # Errors
    /// When the old version of a frozen row cannot be saved.
    pub(crate) fn delete(&mut self, core: &Core, table: u32, id: u64) -> Result<bool, StoreError> {
        let Some(entry) = self.index(table).find(id) else { return Ok(false) };
        let location = self.index(table).location(entry);
        if let Some(slot) = location.slot() {
            if self.frozen.get(slot) {
                self.save_frozen(core, slot)?;
            }
            let meta = self.meta[slot as usize];
            if meta.row != NO_ROW {
                core.log.release(meta.row);
            }
            // The slot stays in the policy's queue and is reused when it reaches the front.
            self.clear_slot(slot);
        } else if let Some(row) = location.row() {
            core.log.release(row);
        }
        self.void_holds_of(table, id, entry);
        self.indexes[table as usize].remove(id);
        self.edits += 1;
        core.index_log.record(self.key(table, id), None);
        self.wait_unpublished(table, id, None);
        Ok(true)
    }

    /// Compaction moved a row in the log: point the index to its new row number if this is still the current
    /// version. Returns whether it was.
    pub(crate) fn relocate(
        &mut self,
        core: &Core,
        key: RowKey,
        table: u32,
        old: u32,
        bytes: &[u8],
    ) -> Result<bool, StoreError> {
        let Some(entry) = self.index(table).find(key.id) else { return Ok(false) };
        let location = self.index(table).location(entry);
        let current = match location.slot() {
            Some(slot) => self.meta[slot as usize].row,
            None => location.row().unwrap_or(NO_ROW),
        };
        if current != old {
            return Ok(false);
        }
        let new = core.log.append_moved(key, bytes)?;
        core.index_log.record_moved(key, new);
        if core.log.follow(old, new) {
            core.index_log.record_move(Move { key, group: core.number, old, new });
        }
        match location.slot() {
            Some(slot) => {
                let meta = self.meta[slot as usize];
                self.meta[slot as usize] = SlotMeta { row: new, ..meta };
            }
            None => self.indexes[table as usize].set_location(entry, Location::device(new)),
        }
        self.edits += 1;
        core.log.release(old);
        Ok(true)
    }

    /// Shrink to at most `slots` slots. Rows in the slots beyond move to the device. Returns the number of
    /// slots given up.
    ///
    /// # Errors
    /// When a row cannot be written. Slots freed so far stay free.
    pub(crate) fn shrink(&mut self, core: &Core, slots: usize) -> Result<usize, StoreError> {
        let target = slots.max(SLOTS_MIN);
        if self.slots <= target {
            return Ok(0);
        }
        for slot in target..self.slots {
            self.vacate(core, slot as u32)?;
        }
        let given = self.slots - target;
        self.slots = target;
        self.free.retain(|&slot| (slot as usize) < target);
        self.policy.truncate(target);
        for bits in [&mut self.dirty, &mut self.frozen] {
            bits.truncate(target);
        }
        self.due.resize(target);
        if let Some(unpublished) = &mut self.unpublished {
            unpublished.slots.truncate(target);
        }
        self.rows.release_from(target * core.layout.stride);
        self.meta.release_from(target);
        core.give_rows(given);
        Ok(given)
    }
}
