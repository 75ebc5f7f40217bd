//! One shard of a group: the rows in memory, the location of every row, and the clocks.
//!
//! A shard has one writer at a time (its lock is outside, in [`crate::group`]), so it uses no atomics.
//! Invariants:
//! * A slot's device row number is valid exactly while the slot is *clean*: making a row dirty releases it.
//! * *Frozen* means: dirty at the last checkpoint cut, unchanged since then and not yet saved. A slot is
//!   never both frozen and dirty. An update of a frozen row first appends the old version (copy on update).
//! * `moves` grows whenever a slot stops holding a row. A reader that released the lock checks it to see
//!   whether its row pointers are still valid.

use std::collections::HashMap;
use std::sync::Arc;

use rowmill_index::{EntryRef, Found, Location, MmapArray, TableIndex, Zeroed, prefetch_bytes};
use rowmill_rows::RowKey;

use super::clocks::VoidHolds;
use super::coming::Coming;
use super::core::Core;
use super::due::{Due, STEPS_MAX};
use super::s3fifo::S3Fifo;
use super::slot_bits::SlotBits;
use super::unpublished::Unpublished;
use crate::error::StoreError;
use crate::memory::Purpose;
use crate::seeded::{self, SeededBug};
use crate::table::{Key, TableState};

/// Slots are taken from the budget this many at a time.
pub(super) const GROW_SLOTS: usize = 32;
/// Minimum number of slots, which a shard gets even when the budget is used up.
pub(crate) const SLOTS_MIN: usize = 8;
/// Bookkeeping per slot besides the row: its [`SlotMeta`], queue and ghost entries.
pub(crate) const SLOT_OVERHEAD_BYTES: usize = size_of::<SlotMeta>() + 12;
pub(super) const NO_ROW: u32 = u32::MAX;
pub(super) const VACANT: u32 = u32::MAX;

/// Which row a slot holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotMeta {
    pub(super) id: u64,
    /// Table within the group, or `VACANT`.
    pub(super) table: u32,
    /// Row number of the same bytes on the device, or `NO_ROW`.
    pub(super) row: u32,
}

// SAFETY: three integers without padding; all zero bytes are a valid value.
unsafe impl Zeroed for SlotMeta {}

/// The slots of a shard, for changing rows in place.
#[derive(Clone, Copy)]
pub(crate) struct SlotsInPlace<'a> {
    /// The row in slot 0.
    first: *mut f32,
    stride: usize,
    dirty: &'a SlotBits,
    unpublished: Option<&'a SlotBits>,
}

impl SlotsInPlace<'_> {
    /// Address of the row in `slot`.
    #[inline(always)]
    pub(crate) fn row(&self, slot: u32) -> *mut f32 {
        self.first.wrapping_byte_add(slot as usize * self.stride)
    }

    /// Prefetch the row in `slot` and the bits that its change reads. Returns the row's address.
    #[inline(always)]
    pub(crate) fn prefetch(&self, slot: u32) -> *mut f32 {
        let row = self.row(slot);
        prefetch_bytes(row, self.stride);
        self.dirty.prefetch(slot);
        if let Some(unpublished) = self.unpublished {
            unpublished.prefetch(slot);
        }
        row
    }

    /// Whether the row is already marked as changed, so that [`Shard::begin_update`] would do nothing.
    #[inline(always)]
    pub(crate) fn is_changed(&self, slot: u32) -> bool {
        self.dirty.get(slot) & self.unpublished.is_none_or(|unpublished| unpublished.get(slot))
    }
}

/// A cold row that an operation must read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss {
    pub(crate) key: Key,
    /// Its row number on the device.
    pub(crate) row: u32,
}

/// Why a cold row is loaded into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// A call uses it.
    Use,
    /// Lookahead announced it. It competes with other rows.
    Announced,
    /// Lookahead announced it for this step. It is kept for the step.
    Wanted(u64),
}

pub(crate) struct Shard {
    pub(super) rows: MmapArray<u8>,
    pub(super) meta: MmapArray<SlotMeta>,
    /// Slots in use or free. Memory beyond them was never touched.
    pub(super) slots: usize,
    /// Slots that hold a row. Slots of deleted rows hold none and are not free: they are still in the
    /// policy's queues.
    pub(super) occupied: usize,
    pub(super) free: Vec<u32>,
    pub(super) dirty: SlotBits,
    pub(super) frozen: SlotBits,
    /// Rows in memory that coming steps have announced.
    pub(crate) due: Due,
    /// Cold rows that coming steps have announced.
    pub(super) coming: Coming,
    /// Changes that the feed has not published; `None` without a feed.
    pub(super) unpublished: Option<Unpublished>,
    pub(super) policy: S3Fifo,
    pub(super) indexes: Vec<TableIndex>,
    /// The tables of the group, parallel to `indexes`.
    pub(super) tables: Vec<Arc<TableState>>,
    /// Exact clocks of entries whose four bits overflowed.
    pub(super) clocks_beyond: HashMap<(u32, u64), u32>,
    /// Void holds of deleted rows, by table and id.
    pub(super) void_holds: HashMap<(u32, u64), VoidHolds>,
    pub(super) moves: u64,
    pub(super) edits: u64,
    /// A row had to leave memory. From then on uses are counted, to choose the next one.
    pub(super) crowded: bool,
    /// All frozen slots below this are saved.
    pub(super) save_from: u32,
    /// Rows that lookahead could not load or keep since its last success or the last step.
    pub(super) refused: usize,
    pub(super) index_bytes: usize,
    /// Number of rows that left memory to make room, for metrics.
    pub(crate) spills: u64,
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
        let row_bytes = slots_max.saturating_mul(core.layout.stride);
        let reserve = |error: std::io::Error| StoreError::MemoryTooSmall {
            option: "memory",
            given: core.budget.memory(),
            needed: row_bytes as u64,
            what: format!("address space for {slots_max} row slots ({error})"),
        };
        Ok(Self {
            rows: MmapArray::reserve(row_bytes, expected_bytes).map_err(reserve)?,
            meta: MmapArray::reserve(slots_max, expected_bytes / core.layout.stride * size_of::<SlotMeta>())
                .map_err(reserve)?,
            slots: 0,
            occupied: 0,
            free: Vec::new(),
            dirty: SlotBits::default(),
            frozen: SlotBits::default(),
            due: Due::default(),
            coming: Coming::default(),
            unpublished: core.waiting.as_ref().map(|waiting| Unpublished::new(0, waiting)),
            policy: S3Fifo::new(slots_max).map_err(reserve)?,
            indexes: Vec::new(),
            tables: Vec::new(),
            save_from: 0,
            refused: 0,
            clocks_beyond: HashMap::new(),
            void_holds: HashMap::new(),
            moves: 0,
            edits: 0,
            crowded: false,
            index_bytes: 0,
            spills: 0,
        })
    }

    // ------------------------------------------------------------------ looking up

    /// The index of a table.
    #[inline]
    pub(crate) fn index(&self, table: u32) -> &TableIndex {
        &self.indexes[table as usize]
    }

    /// The index entry of a key.
    #[inline]
    pub(crate) fn find(&self, key: &Key) -> Option<Found> {
        let index = self.index(key.table);
        let entry = index.find(key.id)?;
        Some(Found { entry, location: index.location(entry) })
    }

    /// The key of an id of a table.
    pub(super) fn key(&self, table: u32, id: u64) -> RowKey {
        RowKey { category: self.tables[table as usize].category, id }
    }

    /// Address of the row in `slot`.
    #[inline]
    pub(crate) fn row(&self, core: &Core, slot: u32) -> *mut f32 {
        self.rows.pointer(slot as usize * core.layout.stride).cast()
    }

    /// Whether [`Shard::touch`] has any effect.
    pub(crate) fn counts_uses(&self) -> bool {
        self.crowded || self.due.is_marked()
    }

    /// Count a use of a resident row. Shared access suffices. The first use of a row that lookahead loaded is
    /// not counted: it was loaded for this use.
    #[inline]
    pub(crate) fn touch(&self, table: u32, entry: EntryRef, slot: u32, in_step: bool) {
        if self.due.is_marked() && self.due.use_row(slot, in_step) {
            return;
        }
        if self.crowded {
            self.indexes[table as usize].touch(entry);
        }
    }

    /// The slots, for changing rows in place.
    #[inline]
    pub(crate) fn slots_in_place(&self, core: &Core) -> SlotsInPlace<'_> {
        SlotsInPlace {
            first: self.row(core, 0),
            stride: core.layout.stride,
            dirty: &self.dirty,
            unpublished: self.unpublished.as_ref().map(|unpublished| &unpublished.slots),
        }
    }

    /// Prefetch the row in `slot` and the mark that its use reads.
    #[inline]
    pub(crate) fn prefetch_row(&self, core: &Core, slot: u32) {
        prefetch_bytes(self.row(core, slot), core.layout.stride);
        if self.due.is_marked() {
            self.due.prefetch(slot);
        }
    }

    /// Generation of the slots: while it is unchanged, no slot has lost its row.
    #[inline]
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    /// Generation of the indexes: while it is unchanged, no index entry has changed.
    #[inline]
    pub(crate) fn edits(&self) -> u64 {
        self.edits
    }

    /// Number of rows in memory.
    pub(crate) fn resident(&self) -> usize {
        self.occupied
    }

    /// Whether all rows are in memory.
    pub(crate) fn all_in_memory(&self) -> bool {
        self.resident() >= self.indexes.iter().map(TableIndex::len).sum()
    }

    // ------------------------------------------------------------------ tables

    /// Add an index for the next table of the group.
    pub(crate) fn add_table(&mut self, core: &Core, table: Arc<TableState>, index: TableIndex) {
        debug_assert_eq!(table.local as usize, self.indexes.len());
        self.indexes.push(index);
        self.tables.push(table);
        self.charge_index(core);
    }

    // ------------------------------------------------------------------ rows coming in

    /// Create the missing row of `id`, with initial weights and initial state.
    ///
    /// # Errors
    /// When the index would exceed the budget, or no room can be made because writes fail.
    pub(crate) fn birth(&mut self, core: &Core, table: u32, id: u64) -> Result<(EntryRef, u32), StoreError> {
        let index = &self.indexes[table as usize];
        let growth = index.grow_bytes_if_inserting(1);
        if growth > 0 {
            core.take_index(growth, Purpose::Grow)?;
            self.index_bytes += growth;
            // Without the row, the index does not grow: its memory is given back.
            self.make_room(core, growth).inspect_err(|_| self.charge_index(core))?;
        }
        let slot = self.take_slot(core).inspect_err(|_| self.charge_index(core))?;
        let entry = self.indexes[table as usize].insert(id, Location::resident(slot));
        self.edits += 1;
        if growth > 0 {
            self.charge_index(core);
        }
        // SAFETY: no other row uses `slot`, whose memory holds `stride` bytes and so covers the weights and
        // state. The exclusive borrow excludes readers.
        let row = unsafe { std::slice::from_raw_parts_mut(self.row(core, slot), core.layout.stride / 4) };
        core.initialize(&self.tables[table as usize], id, row);
        self.occupy(slot, table, id, NO_ROW, Reason::Use);
        self.dirty.set(slot);
        self.mark_unpublished(slot);
        self.tables[table as usize].count_birth();
        Ok((entry, slot))
    }

    /// Load a cold row whose bytes were read. Returns its slot, or `None` when the row has moved since it was
    /// missed.
    ///
    /// # Errors
    /// When no room can be made because writes fail.
    pub(crate) fn admit(
        &mut self,
        core: &Core,
        miss: &Miss,
        bytes: &[u8],
        reason: Reason,
    ) -> Result<Option<u32>, StoreError> {
        let &Miss { key: Key { id, table, .. }, row, .. } = miss;
        let Some(Found { entry, .. }) =
            self.find(&miss.key).filter(|found| found.location.row() == Some(row))
        else {
            return Ok(None);
        };
        let slot = self.take_slot(core)?;
        // SAFETY: the slot's memory holds `stride` bytes, and `bytes` is one row of that length. They do not
        // overlap, because `bytes` never points into slot memory.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.row(core, slot).cast::<u8>(),
                core.layout.stride,
            );
        };
        self.indexes[table as usize].set_location(entry, Location::resident(slot));
        self.edits += 1;
        self.occupy(slot, table, id, row, reason);
        Ok(Some(slot))
    }

    pub(super) fn occupy(&mut self, slot: u32, table: u32, id: u64, row: u32, reason: Reason) {
        self.meta[slot as usize] = SlotMeta { id, table, row };
        self.occupied += 1;
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
        if let Some(step) = self.coming.step_of(hash, self.due.now(), STEPS_MAX) {
            self.due.mark(slot, step);
        }
    }

    /// Allocate or enlarge the table of announced cold rows.
    ///
    /// # Errors
    /// When no room can be made because writes fail.
    pub(crate) fn begin_wanting(&mut self, core: &Core) -> Result<(), StoreError> {
        let (before, after) = (self.coming.bytes(), Coming::bytes_for(self.slots, core.layout.stride));
        // It never shrinks: following every change of the slots would drive rows out each time.
        if after <= before {
            return Ok(());
        }
        // Charged like other bookkeeping: not to the rows if their memory is fixed.
        if !core.budget.rows_are_fixed() {
            core.budget.resize_fixed(before as u64, after as u64);
            let made = self.make_room(core, after - before);
            made.inspect_err(|_| core.budget.resize_fixed(after as u64, before as u64))?;
        }
        self.coming.resize(after);
        Ok(())
    }

    /// Step number `step` announced a cold row: once loaded, the row is kept for the step.
    pub(crate) fn want(&mut self, key: &Key, step: u64) {
        self.coming.want(Core::policy_hash(key.table, key.id), step);
    }

    /// Prepare the row in `slot` for a change in place.
    ///
    /// # Errors
    /// When the old version of a frozen row cannot be saved.
    #[inline(always)]
    pub(crate) fn begin_update(&mut self, core: &Core, slot: u32) -> Result<(), StoreError> {
        self.mark_unpublished(slot);
        if self.dirty.get(slot) { Ok(()) } else { self.become_dirty(core, slot) }
    }

    #[cold]
    pub(super) fn become_dirty(&mut self, core: &Core, slot: u32) -> Result<(), StoreError> {
        let meta = self.meta[slot as usize];
        if seeded::has(SeededBug::LostUpdate) && meta.row != NO_ROW {
            return Ok(());
        }
        if self.frozen.get(slot) {
            let row = self.save_frozen(core, slot)?;
            core.log.release(row);
        } else if meta.row != NO_ROW {
            core.log.release(meta.row);
        }
        self.meta[slot as usize] = SlotMeta { row: NO_ROW, ..meta };
        self.dirty.set(slot);
        Ok(())
    }

    /// A slot for a new row: a free slot, a new one, or the slot of the row least worth keeping.
    pub(super) fn take_slot(&mut self, core: &Core) -> Result<u32, StoreError> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        // Without a cap per shard, a shard that lost slots could never get them back.
        let most = self.meta.len().min(core.shard_slots().max(SLOTS_MIN));
        let room = most.saturating_sub(self.slots).min(GROW_SLOTS);
        let few = self.slots < SLOTS_MIN;
        // When the log is short of places, memory takes no more rows than the log could save.
        let may_grow = room > 0 && (few || core.has_places_for(room));
        if may_grow && (core.take_rows(room) || (few && core.force_rows(room))) {
            let first = self.slots as u32;
            self.slots += room;
            self.free.extend((first + 1..first + room as u32).rev());
            for slot in first..first + room as u32 {
                self.meta[slot as usize] = SlotMeta { id: 0, table: VACANT, row: NO_ROW };
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
        self.spill(core)
    }

    /// Estimates how many slots hold rows that no coming step has announced, from a sample of about `judged`
    /// slots. Before the first spill it returns all slots.
    pub(crate) fn slots_not_wanted(&self, judged: usize) -> usize {
        let stride = (self.slots / judged).max(1);
        // A different sample for each value of `moves`.
        let some = (self.moves as usize % stride..self.slots).step_by(stride);
        let of = some.len().max(1);
        let wanted = some.filter(|&slot| self.crowded && self.due.is_held(slot as u32)).count();
        self.slots - self.slots * wanted / of
    }

    /// Whether one more row may be loaded for a coming step. If not, counts `rows` refusals.
    pub(crate) fn may_admit_ahead(&mut self, rows: usize) -> bool {
        if self.policy.may_admit_ahead(self.slots.max(SLOTS_MIN)) {
            self.refused = 0;
            return true;
        }
        self.refuse_ahead(rows);
        false
    }

    /// There is no room for `rows` announced rows.
    pub(crate) fn refuse_ahead(&mut self, rows: usize) {
        // If no steps pass, announced rows that are never used would block lookahead forever. After more
        // refusals than slots, drop all marks.
        self.refused += rows;
        if self.refused > self.slots {
            self.due.clear_all();
            self.coming.clear();
            self.policy.release_ahead();
            self.refused = 0;
        }
    }

    /// Step number `step` reads rows.
    pub(crate) fn advance(&mut self, step: u64) {
        self.due.advance(step);
        self.policy.advance(step);
        self.refused = 0;
    }

    // ------------------------------------------------------------------ accounts

    pub(super) fn charge_index(&mut self, core: &Core) {
        let bytes = self.indexes.iter().map(TableIndex::bytes).sum();
        core.budget.resize_index(self.index_bytes, bytes);
        self.index_bytes = bytes;
    }

    /// Memory in bytes: (rows, index, bookkeeping).
    pub(crate) fn bytes(&self, core: &Core) -> (usize, usize, usize) {
        let meta = self.slots * size_of::<SlotMeta>()
            + self.free.capacity() * 4
            + self.dirty.bytes() * 2
            + self.due.bytes()
            + self.coming.bytes()
            + self.unpublished.as_ref().map_or(0, Unpublished::bytes);
        (self.slots * core.layout.stride, self.index_bytes, meta + self.policy.bytes(self.slots))
    }

    /// Number of slots in use or free.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }
}
