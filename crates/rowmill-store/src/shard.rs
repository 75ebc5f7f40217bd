//! One shard of a group: the rows in memory, where every row is, and who holds it.
//!
//! A shard has one writer at a time (its lock is outside, in [`crate::group`]), so everything here is
//! plain words. Invariants:
//! * a slot's device row number is valid exactly while the slot is *clean*: dirtying a row releases it;
//! * *frozen* means: dirty at the last checkpoint cut, unchanged since and not yet saved. Frozen and
//!   dirty exclude each other; an update of a frozen row first appends the old version (copy on update);
//! * `moves` grows whenever a slot stops holding a row, so a reader that let go of the lock can tell
//!   whether its row pointers still hold.

mod restore;

use std::collections::HashMap;
use std::sync::Arc;

use rowmill_rows::RowKey;

use crate::StoreError;
use crate::bits::Bits;
use crate::core::Core;
use crate::due::Due;
use crate::index::{CLOCK_OVERFLOW, Found, Location, Place, TableIndex};
use crate::keys::Key;
use crate::mapping::{Mapping, Zeroable};
use crate::policy::{Policy, Standing};
use crate::prefetch::prefetch_bytes;
use crate::seeded::{self, SeededBug};
use crate::table_state::TableState;
use crate::unpublished::Unpublished;

/// Slots are taken from the budget this many at a time.
const GROW_SLOTS: usize = 32;
/// A shard works with this few slots even when the budget has nothing left.
pub(crate) const SLOTS_MIN: usize = 8;
/// Bookkeeping per slot beside the row: its [`SlotMeta`], queue and ghost entries.
pub(crate) const SLOT_OVERHEAD_BYTES: usize = size_of::<SlotMeta>() + 12;
const NO_ROW: u32 = u32::MAX;
const VACANT: u32 = u32::MAX;

/// Which row a slot holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotMeta {
    id: u64,
    /// Table within the group, or `VACANT`.
    table: u32,
    /// Where the device has the same bytes, or `NO_ROW`.
    row: u32,
}

// SAFETY: three integers without padding; zero bytes are a value of each.
unsafe impl Zeroable for SlotMeta {}

/// A cold row that an operation has to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss {
    pub(crate) key: Key,
    /// Where the device has it.
    pub(crate) row: u32,
}

/// Why a cold row comes into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It is being used.
    Use,
    /// It was announced, and competes with other rows.
    Announced,
    /// It was announced for this step, and is kept for it.
    Wanted(u64),
}

/// What an acquired clock looked like, for statistics and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The clock was taken; this many gets were outstanding before.
    Taken(u32),
    /// The bound is reached.
    Blocked(u32),
}

pub(crate) struct Shard {
    rows: Mapping<u8>,
    meta: Mapping<SlotMeta>,
    /// Slots in use or free; those beyond were never touched.
    slots: usize,
    free: Vec<u32>,
    dirty: Bits,
    frozen: Bits,
    /// Rows that coming steps want.
    pub(crate) due: Due,
    /// What the feed has not said yet; none where no feed is kept.
    pub(crate) unpublished: Option<Unpublished>,
    policy: Policy,
    indexes: Vec<TableIndex>,
    /// The tables of the group, beside their indexes.
    tables: Vec<Arc<TableState>>,
    /// Exact clocks of the entries whose four bits overflowed.
    clocks_beyond: HashMap<(u32, u64), u32>,
    moves: u64,
    edits: u64,
    /// A row had to leave: from then on uses are counted, to tell which one goes next.
    crowded: bool,
    /// Frozen slots below this one are saved.
    save_from: u32,
    /// Rows lookahead could not bring in since the last one it could.
    refused: usize,
    index_bytes: usize,
    /// Rows evicted, for statistics.
    pub(crate) evictions: u64,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("slots", &self.slots)
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}

impl Shard {
    /// A shard with room for up to `slots_max` rows.
    pub(crate) fn new(core: &Core, slots_max: usize, expected_bytes: usize) -> Result<Self, StoreError> {
        let reserve = |error: std::io::Error| StoreError::MemoryTooSmall {
            option: "memory",
            given: core.budget.memory(),
            needed: (slots_max * core.layout.stride) as u64,
            what: format!("address space for {slots_max} row slots ({error})"),
        };
        Ok(Self {
            rows: Mapping::new(slots_max * core.layout.stride, expected_bytes).map_err(reserve)?,
            meta: Mapping::new(slots_max, expected_bytes / core.layout.stride * size_of::<SlotMeta>())
                .map_err(reserve)?,
            slots: 0,
            free: Vec::new(),
            dirty: Bits::default(),
            frozen: Bits::default(),
            due: Due::default(),
            unpublished: core.publishes.then(Unpublished::default),
            policy: Policy::new(slots_max).map_err(reserve)?,
            indexes: Vec::new(),
            tables: Vec::new(),
            save_from: 0,
            refused: 0,
            clocks_beyond: HashMap::new(),
            moves: 0,
            edits: 0,
            crowded: false,
            index_bytes: 0,
            evictions: 0,
        })
    }

    // ------------------------------------------------------------------ looking up

    /// The index of a table.
    #[inline]
    pub(crate) fn index(&self, table: u32) -> &TableIndex {
        &self.indexes[table as usize]
    }

    /// The key of an id of a table.
    fn key(&self, table: u32, id: u64) -> RowKey {
        RowKey { category: self.tables[table as usize].category, id }
    }

    /// Address of the row in `slot`.
    #[inline]
    pub(crate) fn row(&self, core: &Core, slot: u32) -> *mut f32 {
        self.rows.pointer(slot as usize * core.layout.stride).cast()
    }

    /// Count a use of a resident row. Shared access suffices. A row that lookahead brought is not
    /// counted at its first use: that use is what it was brought for.
    #[inline]
    pub(crate) fn touch(&self, table: u32, place: Place, slot: u32, in_step: bool) {
        if self.due.is_marked() && self.due.use_row(slot, in_step) {
            return;
        }
        if self.crowded {
            self.indexes[table as usize].touch(place);
        }
    }

    /// Start loading the row in `slot`, and what a use or an update of it looks at.
    #[inline]
    pub(crate) fn prefetch_row<const UPDATE: bool>(&self, core: &Core, slot: u32) {
        prefetch_bytes(self.row(core, slot), core.layout.stride);
        if UPDATE {
            self.dirty.prefetch(slot);
            if let Some(unpublished) = &self.unpublished {
                unpublished.slots.prefetch(slot);
            }
        }
        if self.due.is_marked() {
            self.due.prefetch(slot);
        }
    }

    /// Generation of the slots: unchanged means that no slot lost its row.
    #[inline]
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    /// Generation of the indexes: unchanged means that every entry says what it said.
    #[inline]
    pub(crate) fn edits(&self) -> u64 {
        self.edits
    }

    /// Rows in memory.
    pub(crate) fn resident(&self) -> usize {
        self.slots - self.free.len()
    }

    // ------------------------------------------------------------------ tables

    /// Add an index for the next table of the group.
    pub(crate) fn add_table(&mut self, core: &Core, table: Arc<TableState>, index: TableIndex) {
        debug_assert_eq!(table.local as usize, self.indexes.len());
        self.indexes.push(index);
        self.tables.push(table);
        self.charge_index(core);
    }

    // ------------------------------------------------------------------ clocks

    /// Take the clock of an entry unless more than `bound` gets are outstanding.
    #[inline]
    pub(crate) fn take_clock(&mut self, table: u32, id: u64, place: Place, bound: u8) -> Clock {
        let outstanding = self.outstanding(table, id, place);
        if outstanding > u32::from(bound) && !seeded::has(SeededBug::NoBound) {
            return Clock::Blocked(outstanding);
        }
        self.set_outstanding(table, id, place, outstanding + 1);
        Clock::Taken(outstanding)
    }

    /// Give one get of an entry back. Releasing what nobody holds (the row was deleted and born again)
    /// does nothing.
    #[inline]
    pub(crate) fn release_clock(&mut self, table: u32, id: u64, place: Place) {
        let outstanding = self.outstanding(table, id, place);
        if outstanding > 0 {
            self.set_outstanding(table, id, place, outstanding - 1);
        }
    }

    /// Give one get of a row back, if there is such a row.
    pub(crate) fn release_clock_of(&mut self, key: &Key) {
        if let Some(found) = self.find(key) {
            self.release_clock(key.table, key.id, found.place);
        }
    }

    /// Outstanding gets of an entry.
    #[inline]
    pub(crate) fn outstanding(&self, table: u32, id: u64, place: Place) -> u32 {
        match self.indexes[table as usize].clock(place) {
            CLOCK_OVERFLOW => {
                self.clocks_beyond.get(&(table, id)).copied().unwrap_or(u32::from(CLOCK_OVERFLOW))
            }
            exact => u32::from(exact),
        }
    }

    #[inline]
    fn set_outstanding(&mut self, table: u32, id: u64, place: Place, outstanding: u32) {
        let index = &mut self.indexes[table as usize];
        if outstanding < u32::from(CLOCK_OVERFLOW) {
            if index.clock(place) == CLOCK_OVERFLOW {
                self.clocks_beyond.remove(&(table, id));
            }
            index.set_clock(place, outstanding as u8);
        } else {
            index.set_clock(place, CLOCK_OVERFLOW);
            self.clocks_beyond.insert((table, id), outstanding);
        }
    }

    // ------------------------------------------------------------------ rows coming in

    /// Make the missing row of `id`: its weights drawn, its state at its initial value.
    ///
    /// # Errors
    /// When the index would exceed the budget, or room cannot be made because writes fail.
    pub(crate) fn birth(&mut self, core: &Core, table: u32, id: u64) -> Result<(Place, u32), StoreError> {
        let index = &self.indexes[table as usize];
        let growth = index.grow_bytes_if_inserting(1);
        if growth > 0 {
            core.check_index_growth(growth as u64)?;
            self.make_room(core, growth)?;
        }
        let slot = self.take_slot(core)?;
        let place = self.indexes[table as usize].insert(id, Location::resident(slot));
        self.edits += 1;
        if growth > 0 {
            self.charge_index(core);
        }
        // SAFETY: `slot` is in use by nobody else and the row memory of a slot holds `stride` bytes,
        // which cover the weights and state of the layout; the exclusive borrow excludes readers.
        let row = unsafe { std::slice::from_raw_parts_mut(self.row(core, slot), core.layout.stride / 4) };
        core.initialize(&self.tables[table as usize], id, row);
        self.occupy(slot, table, id, NO_ROW, Reason::Use);
        self.dirty.set(slot);
        self.mark_unpublished(slot);
        self.tables[table as usize].count_birth();
        Ok((place, slot))
    }

    /// Bring a cold row, whose bytes were read, into memory; its slot, or `None` when it is no longer where
    /// it was missed.
    ///
    /// # Errors
    /// When room cannot be made because writes fail.
    pub(crate) fn admit(
        &mut self,
        core: &Core,
        miss: &Miss,
        bytes: &[u8],
        reason: Reason,
    ) -> Result<Option<u32>, StoreError> {
        let &Miss { key: Key { id, table, .. }, row, .. } = miss;
        let Some(Found { place, .. }) =
            self.find(&miss.key).filter(|found| found.location.row() == Some(row))
        else {
            return Ok(None);
        };
        let slot = self.take_slot(core)?;
        // SAFETY: the slot's memory holds `stride` bytes and `bytes` is one row of that length; the two
        // do not overlap because `bytes` never points into slot memory.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.row(core, slot).cast::<u8>(),
                core.layout.stride,
            );
        };
        self.indexes[table as usize].set_location(place, Location::resident(slot));
        self.edits += 1;
        self.occupy(slot, table, id, row, reason);
        Ok(Some(slot))
    }

    fn occupy(&mut self, slot: u32, table: u32, id: u64, row: u32, reason: Reason) {
        self.meta.set(slot as usize, SlotMeta { id, table, row });
        let hash = Core::policy_hash(table, id);
        if reason != Reason::Use {
            self.due.mark_unused(slot);
        }
        if let Reason::Wanted(step) = reason {
            self.due.mark(slot, step);
            self.policy.admit_ahead(slot, step, hash);
        } else {
            self.policy.admit(slot, hash);
        }
    }

    /// Prepare the row in `slot` for a change in place.
    ///
    /// # Errors
    /// When the old version of a frozen row cannot be saved.
    #[inline]
    pub(crate) fn begin_update(&mut self, core: &Core, slot: u32) -> Result<(), StoreError> {
        self.mark_unpublished(slot);
        if self.dirty.get(slot) {
            return Ok(());
        }
        let meta = self.meta.get(slot as usize);
        if seeded::has(SeededBug::LostUpdate) && meta.row != NO_ROW {
            return Ok(());
        }
        if self.frozen.get(slot) {
            let row = self.save_frozen(core, slot)?;
            core.log.release(row);
        } else if meta.row != NO_ROW {
            core.log.release(meta.row);
        }
        self.meta.set(slot as usize, SlotMeta { row: NO_ROW, ..meta });
        self.dirty.set(slot);
        Ok(())
    }

    /// Whether one more row may be brought in for a coming step.
    pub(crate) fn may_admit_ahead(&mut self) -> bool {
        if self.policy.may_admit_ahead(self.slots.max(SLOTS_MIN)) {
            self.refused = 0;
            return true;
        }
        // Without steps that pass, rows announced and never used would block lookahead for good: after as
        // many refusals as there are slots, start afresh.
        self.refused += 1;
        if self.refused > self.slots {
            self.due.clear_all();
            self.policy.release_ahead();
            self.refused = 0;
        }
        false
    }

    /// Step number `step` reads rows.
    pub(crate) fn advance(&mut self, step: u64) {
        self.due.advance(step);
        self.policy.advance(step);
    }

    // ------------------------------------------------------------------ rows going out

    /// A slot to put a row into: a free one, a new one, or that of the row least worth keeping.
    fn take_slot(&mut self, core: &Core) -> Result<u32, StoreError> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let room = (self.meta.capacity() - self.slots).min(GROW_SLOTS);
        if room > 0 && (core.take_rows(room) || (self.slots < SLOTS_MIN && core.force_rows(room))) {
            let first = self.slots as u32;
            self.slots += room;
            self.free.extend((first + 1..first + room as u32).rev());
            for slot in first..first + room as u32 {
                self.meta.set(slot as usize, SlotMeta { id: 0, table: VACANT, row: NO_ROW });
            }
            for bits in [&mut self.dirty, &mut self.frozen] {
                bits.grow(self.slots);
            }
            self.due.resize(self.slots);
            if let Some(unpublished) = &mut self.unpublished {
                unpublished.slots.grow(self.slots);
            }
            return Ok(first);
        }
        self.evict(core)
    }

    /// Free the slot of the row least worth keeping.
    fn evict(&mut self, core: &Core) -> Result<u32, StoreError> {
        self.crowded = true;
        let (meta, due) = (&self.meta, &self.due);
        let indexes = std::cell::RefCell::new(&mut self.indexes);
        let entry = |slot: u32| {
            let row = meta.get(slot as usize);
            let place = indexes.borrow()[row.table as usize].find(row.id).expect("a resident row is indexed");
            (row, place)
        };
        let victim = self.policy.evict(
            |slot| {
                if meta.get(slot as usize).table == VACANT {
                    return Standing::Vacant;
                }
                let (row, place) = entry(slot);
                let indexes = indexes.borrow();
                let index = &indexes[row.table as usize];
                if due.is_held(slot) || index.clock(place) > 0 {
                    Standing::Held
                } else {
                    Standing::Uses(index.frequency(place))
                }
            },
            |slot| {
                let row = meta.get(slot as usize);
                Core::policy_hash(row.table, row.id)
            },
            |slot, all| {
                let (row, place) = entry(slot);
                let mut indexes = indexes.borrow_mut();
                let index = &mut indexes[row.table as usize];
                let uses = if all { 0 } else { index.frequency(place) - 1 };
                index.set_frequency(place, uses);
            },
        );
        let victim = victim.expect("a shard has slots before it evicts");
        let meta = self.meta.get(victim as usize);
        if let Err(error) = self.vacate(core, victim) {
            // The row stays where it is; the policy forgot its slot when it chose it.
            self.policy.admit(victim, Core::policy_hash(meta.table, meta.id));
            return Err(error);
        }
        Ok(victim)
    }

    /// Give up rows before the index of this shard grows by `bytes`: indexes of a group grow at about the
    /// same time, and rows that left only afterwards would exceed the budget by all of that.
    fn make_room(&mut self, core: &Core, bytes: usize) -> Result<(), StoreError> {
        let over = core.budget.rows_over(bytes as u64).min(bytes as u64);
        let slots = over.div_ceil(core.slot_bytes()) as usize;
        // What half of the slots cannot give, the other shards do afterwards.
        self.shrink(core, self.slots - slots.min(self.slots / 2)).map(drop)
    }

    /// Move the row in `slot`, if any, out of memory.
    fn vacate(&mut self, core: &Core, slot: u32) -> Result<(), StoreError> {
        let meta = self.meta.get(slot as usize);
        if meta.table == VACANT {
            return Ok(());
        }
        let row = if self.frozen.get(slot) {
            self.save_frozen(core, slot)?
        } else if self.dirty.get(slot) {
            let row = self.append(core, slot, meta)?;
            core.index_log.record(self.key(meta.table, meta.id), Some(row));
            row
        } else {
            meta.row
        };
        let index = &mut self.indexes[meta.table as usize];
        let place = index.find(meta.id).expect("a resident row is indexed");
        index.set_location(place, Location::device(row));
        index.set_frequency(place, 0);
        self.edits += 1;
        self.leave_unpublished(core, slot, meta);
        self.clear_slot(slot);
        self.evictions += 1;
        Ok(())
    }

    fn clear_slot(&mut self, slot: u32) {
        self.meta.set(slot as usize, SlotMeta { id: 0, table: VACANT, row: NO_ROW });
        self.dirty.clear(slot);
        self.frozen.clear(slot);
        self.due.clear(slot);
        if let Some(unpublished) = &mut self.unpublished {
            unpublished.slots.clear(slot);
        }
        self.moves += 1;
    }

    fn append(&self, core: &Core, slot: u32, meta: SlotMeta) -> Result<u32, StoreError> {
        // SAFETY: the slot holds a row of `stride` initialised bytes, and `&self` under the shard's lock
        // excludes writers.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.row(core, slot).cast::<u8>(), core.layout.stride) };
        core.append(self.key(meta.table, meta.id), bytes)
    }

    /// Append a frozen row for the checkpoint that froze it. The slot is clean afterwards.
    fn save_frozen(&mut self, core: &Core, slot: u32) -> Result<u32, StoreError> {
        let meta = self.meta.get(slot as usize);
        let row = self.append(core, slot, meta)?;
        core.index_log.record_frozen(self.key(meta.table, meta.id), Some(row));
        self.meta.set(slot as usize, SlotMeta { row, ..meta });
        self.frozen.clear(slot);
        Ok(row)
    }

    /// Remove a row; whether there was one.
    ///
    /// # Errors
    /// When the old version of a frozen row cannot be saved.
    pub(crate) fn delete(&mut self, core: &Core, table: u32, id: u64) -> Result<bool, StoreError> {
        let Some(place) = self.index(table).find(id) else { return Ok(false) };
        let location = self.index(table).location(place);
        if let Some(slot) = location.slot() {
            if self.frozen.get(slot) {
                self.save_frozen(core, slot)?;
            }
            let meta = self.meta.get(slot as usize);
            if meta.row != NO_ROW {
                core.log.release(meta.row);
            }
            // The slot stays in the policy's queue and is handed out when its turn comes.
            self.clear_slot(slot);
        } else if let Some(row) = location.row() {
            core.log.release(row);
        }
        self.indexes[table as usize].remove(id);
        self.edits += 1;
        self.clocks_beyond.remove(&(table, id));
        core.index_log.record(self.key(table, id), None);
        if let Some(unpublished) = &mut self.unpublished {
            unpublished.leave(table, id, None);
        }
        Ok(true)
    }

    /// The log moved a row (compaction): point to its new place if it is still the current version.
    /// Returns whether it was.
    pub(crate) fn relocate(
        &mut self,
        core: &Core,
        key: RowKey,
        table: u32,
        old: u32,
        bytes: &[u8],
    ) -> Result<bool, StoreError> {
        let Some(place) = self.index(table).find(key.id) else { return Ok(false) };
        let location = self.index(table).location(place);
        let current = match location.slot() {
            Some(slot) => self.meta.get(slot as usize).row,
            None => location.row().unwrap_or(NO_ROW),
        };
        if current != old {
            return Ok(false);
        }
        let new = core.log.append_moved(key, bytes)?;
        core.index_log.record_moved(key, new);
        match location.slot() {
            Some(slot) => {
                let meta = self.meta.get(slot as usize);
                self.meta.set(slot as usize, SlotMeta { row: new, ..meta });
            }
            None => self.indexes[table as usize].set_location(place, Location::device(new)),
        }
        self.edits += 1;
        core.log.release(old);
        Ok(true)
    }

    /// Shrink to at most `slots` slots: rows in the slots beyond move to the device. Returns slots given up.
    ///
    /// # Errors
    /// When a row cannot be written; the slots freed so far stay free.
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

    // ------------------------------------------------------------------ checkpoints

    /// The cut: what is dirty now belongs to the checkpoint.
    pub(crate) fn freeze(&mut self) {
        debug_assert_eq!(self.frozen.count(), 0, "one checkpoint at a time");
        std::mem::swap(&mut self.dirty, &mut self.frozen);
        self.dirty.grow(self.slots);
        self.save_from = 0;
    }

    /// Save up to `rows` frozen rows; how many were, and whether there are more.
    pub(crate) fn save_some(&mut self, core: &Core, rows: usize) -> Result<(usize, bool), StoreError> {
        for saved in 0..rows {
            let Some(slot) = self.frozen.first_from(self.save_from) else { return Ok((saved, false)) };
            self.save_frozen(core, slot)?;
            self.save_from = slot;
        }
        Ok((rows, self.frozen.count() > 0))
    }

    /// Visit the rows of a table that the device has in their current version, with their row numbers.
    pub(crate) fn on_device(&self, table: u32, mut visit: impl FnMut(u64, u32)) {
        self.index(table).for_each(|id, location| {
            let row =
                location.slot().map_or_else(|| location.row(), |slot| Some(self.meta.get(slot as usize).row));
            if let Some(row) = row.filter(|&row| row != NO_ROW) {
                visit(id, row);
            }
        });
    }

    /// Rows that the next checkpoint would have to save.
    pub(crate) fn dirty_rows(&self) -> usize {
        self.dirty.count() + self.frozen.count()
    }

    // ------------------------------------------------------------------ the feed

    /// The row in `slot` leaves memory.
    fn leave_unpublished(&mut self, core: &Core, slot: u32, meta: SlotMeta) {
        let row = self.row(core, slot);
        if let Some(unpublished) = &mut self.unpublished
            && unpublished.slots.get(slot)
        {
            // SAFETY: the slot holds a row, which begins with `dim` weights, and the exclusive borrow excludes
            // writers.
            let weights = unsafe { std::slice::from_raw_parts(row, core.layout.dim) };
            unpublished.leave(meta.table, meta.id, Some(weights));
        }
    }

    /// Hand out up to `rows` resident rows that changed since the last time, from slot `from` on, after all that
    /// left memory since: `visit(table, id, weights)`, without weights for deleted ones. Whether there are more.
    pub(crate) fn take_unpublished(
        &mut self,
        core: &Core,
        from: &mut u32,
        rows: usize,
        mut visit: impl FnMut(&Arc<TableState>, u64, Option<&[f32]>),
    ) -> bool {
        let Some(mut unpublished) = self.unpublished.take() else { return false };
        unpublished.take_left(core.layout.dim, |table, id, weights| {
            visit(&self.tables[table as usize], id, weights);
        });
        let mut taken = 0;
        let mut more = true;
        while taken < rows {
            let Some(slot) = unpublished.slots.first_from(*from) else {
                more = false;
                break;
            };
            unpublished.slots.clear(slot);
            let meta = self.meta.get(slot as usize);
            // SAFETY: as in `leave_unpublished`.
            let weights = unsafe { std::slice::from_raw_parts(self.row(core, slot), core.layout.dim) };
            visit(&self.tables[meta.table as usize], meta.id, Some(weights));
            *from = slot;
            taken += 1;
        }
        self.unpublished = Some(unpublished);
        more
    }

    // ------------------------------------------------------------------ accounts

    fn charge_index(&mut self, core: &Core) {
        let bytes = self.indexes.iter().map(TableIndex::bytes).sum();
        core.budget.resize_index(self.index_bytes, bytes);
        self.index_bytes = bytes;
    }

    /// Bytes of memory: (rows, index, bookkeeping).
    pub(crate) fn bytes(&self, core: &Core) -> (usize, usize, usize) {
        let meta = self.slots * size_of::<SlotMeta>()
            + self.free.capacity() * 4
            + self.dirty.bytes() * 2
            + self.due.bytes()
            + self.unpublished.as_ref().map_or(0, Unpublished::bytes);
        (self.slots * core.layout.stride, self.index_bytes, meta + self.policy.bytes(self.slots))
    }

    /// Slots in the arena.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }
}
