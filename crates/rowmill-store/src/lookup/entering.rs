//! Acquires the rows of one shard for a training read: chunk by chunk, with separate loops for resident rows.
//!
//! Addresses are noted, but rows are not prefetched here: there may be more rows than the caches hold. The
//! reader prefetches a few rows ahead.

use rowmill_index::{EntryRef, Found, Location};
use rowmill_kernels::RowPtr;

use super::acquire::{Clocks, Wish};
use crate::error::StoreError;
use crate::group::{CHUNK, look_ahead};
use crate::metrics::StalenessCounts;
use crate::shard::{Clock, Core, Miss, Shard};
use crate::table::Key;
use crate::threads::Scatter;

/// Why the rest of a shard was not entered.
pub(crate) enum Stop {
    Failed(StoreError),
    /// A row beyond its bound, and its number of outstanding gets.
    Blocked(Key, u32),
}

/// Results of a shard so far.
#[derive(Default)]
pub(crate) struct Entering {
    /// Number of keys visited. Their clocks were taken, if requested.
    pub(crate) visited: usize,
    pub(crate) misses: Vec<Miss>,
    /// Keys without a row.
    pub(crate) unseen: Vec<Key>,
    /// Index entry of every key, if requested.
    pub(crate) found: Vec<Option<Found>>,
    /// Staleness of the clocks taken.
    pub(crate) staleness: StalenessCounts,
}

impl Entering {
    /// Take clocks, create missing rows, and write the address of every row to its position.
    pub(crate) fn enter(
        &mut self,
        core: &Core,
        shard: &mut Shard,
        keys: &[Key],
        wish: &Wish<'_>,
        out: &Scatter<'_, RowPtr>,
    ) -> Result<(), Stop> {
        if wish.notes {
            self.found.reserve(keys.len());
        }
        let mut found = [None; CHUNK];
        let of_one_table = keys.chunk_by(|one, next| one.table == next.table);
        for keys in of_one_table.flat_map(|keys| keys.chunks(CHUNK)) {
            let index = shard.index(keys[0].table);
            look_ahead(|_| index, keys, &mut found);
            let found = &found[..keys.len()];
            if found.iter().all(|found| found.is_some_and(|found| found.location.is_resident())) {
                self.enter_resident(core, shard, keys, found, wish, out)?;
                continue;
            }
            let edits = shard.edits();
            for (key, &found) in keys.iter().zip(found) {
                // Entries read before the index changed are stale.
                let found = if shard.edits() == edits { found } else { shard.find(key) };
                self.enter_one(core, shard, key, found, wish, out)?;
            }
        }
        Ok(())
    }

    /// Enter rows of one table that are all in memory.
    fn enter_resident(
        &mut self,
        core: &Core,
        shard: &mut Shard,
        keys: &[Key],
        found: &[Option<Found>],
        wish: &Wish<'_>,
        out: &Scatter<'_, RowPtr>,
    ) -> Result<(), Stop> {
        let table = keys[0].table;
        let entries = || found.iter().map(|found| found.expect("the row is in memory").entry);
        // Without clocks, `bounds` may be empty.
        if let Some(clocks) = &wish.clocks
            && let Some(bound) = wish.bounds[table as usize]
        {
            for (number, (key, entry)) in keys.iter().zip(entries()).enumerate() {
                self.take(shard, clocks, bound, key, entry).inspect_err(|_| self.visited += number)?;
            }
        }
        self.visited += keys.len();
        if wish.notes {
            self.found.extend_from_slice(found);
        }
        if shard.counts_uses() {
            for (key, found) in keys.iter().zip(found) {
                let Found { entry, location } = found.expect("the row is in memory");
                shard.touch(key.table, entry, location.slot().expect("as above"), wish.clocks.is_some());
            }
        }
        let slots = shard.slots_in_place(core);
        for (key, found) in keys.iter().zip(found) {
            let slot = found.and_then(|found| found.location.slot()).expect("the row is in memory");
            // SAFETY: every position belongs to one shard, and one thread enters a shard.
            unsafe { out.set(key.position as usize, slots.row(slot).cast_const()) };
        }
        Ok(())
    }

    /// Enter one row: resident, cold or missing.
    fn enter_one(
        &mut self,
        core: &Core,
        shard: &mut Shard,
        key: &Key,
        found: Option<Found>,
        wish: &Wish<'_>,
        out: &Scatter<'_, RowPtr>,
    ) -> Result<(), Stop> {
        let found = match found {
            Some(found) => found,
            None if wish.births => {
                let (entry, slot) = shard.birth(core, key.table, key.id).map_err(Stop::Failed)?;
                Found { entry, location: Location::resident(slot) }
            }
            None => {
                self.unseen.push(*key);
                self.visited += 1;
                return Ok(());
            }
        };
        if let Some(clocks) = &wish.clocks
            && let Some(bound) = wish.bounds[key.table as usize]
        {
            self.take(shard, clocks, bound, key, found.entry)?;
        }
        self.visited += 1;
        if wish.notes {
            self.found.push(Some(found));
        }
        let position = key.position as usize;
        if let Some(slot) = found.location.slot() {
            shard.touch(key.table, found.entry, slot, wish.clocks.is_some());
            // SAFETY: every position belongs to one shard, and one thread enters a shard.
            unsafe { out.set(position, shard.row(core, slot).cast_const()) };
        } else if let Some(row) = found.location.row() {
            // SAFETY: as above. Entering again after a wait must not leave an old address.
            unsafe { out.set(position, std::ptr::null()) };
            self.misses.push(Miss { key: *key, row });
        }
        Ok(())
    }

    /// Take the clock of a row, unless the step already holds it.
    #[inline(always)]
    fn take(
        &mut self,
        shard: &mut Shard,
        clocks: &Clocks<'_>,
        bound: u8,
        key: &Key,
        entry: EntryRef,
    ) -> Result<(), Stop> {
        let is_fresh = clocks.takes(key.position);
        if !is_fresh && !clocks.hold_is_void(shard, key) {
            return Ok(());
        }
        match shard.take_clock(clocks.ticket.id(), key, entry, bound) {
            Clock::Taken(outstanding) => self.staleness.count(outstanding),
            Clock::Blocked(outstanding) => return Err(Stop::Blocked(*key, outstanding)),
        }
        if !is_fresh {
            // The new hold replaces the void hold in the ticket's record.
            shard.end_void_hold(key);
        }
        Ok(())
    }
}
