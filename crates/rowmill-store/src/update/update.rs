//! Changes of rows: put, rmw, and the fused backward of a lookup.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rowmill_index::{EntryRef, Found};

use crate::error::StoreError;
use crate::group::{CHUNK, Changeable, ColdReading, Group, Known, as_bytes, look_ahead, rows_together};
use crate::lookup::PIECE_ROWS;
use crate::shard::{Miss, Reason, Shard};
use crate::staleness::{Release, Released};
use crate::table::{Key, Keys, TableIds, TableState, write_keys};

/// Bytes per row of the lists that a change makes: keys and misses.
const LIST_BYTES: usize = 64;

/// A change of rows.
pub(crate) trait Change: Sync {
    /// Prefetch what a change of these rows, all of one table, reads.
    fn prefetch(&self, _: &[Key]) {}

    /// Change some rows of one table, at most [`CHUNK`].
    fn change(&self, keys: &[Key], rows: &[*mut f32]);
}

impl<F: Fn(&[Key], &[*mut f32]) + Sync> Change for F {
    fn change(&self, keys: &[Key], rows: &[*mut f32]) {
        self(keys, rows);
    }
}

/// The rows of a change; they are distinct.
pub(crate) enum Target<'a> {
    /// Rows of one table.
    Ids { table: &'a TableState, ids: &'a [u64] },
    /// Rows of several tables. `known` holds, by shard, the index entries that a read of the same keys found,
    /// if any.
    Keys { keys: &'a Keys, known: &'a [Option<Known>] },
}

/// One change of many rows.
struct Changing<'a, C> {
    reading: ColdReading<'a>,
    release: &'a Release,
    /// Positions whose clock was released; empty when none is to be released.
    done: Vec<AtomicBool>,
    /// Whether a change of a changed row counts as a use of it. Not where a read of the same step has counted it.
    counts_uses: bool,
    change: &'a C,
}

impl Group {
    /// Change every row once, in place. Missing rows are created first, and cold rows loaded. The clocks in
    /// `release` are released with the change, under the same lock.
    ///
    /// # Errors
    /// When rows cannot be read or no room can be made. Changes made so far stay, and all clocks are
    /// released.
    pub(crate) fn update(
        &self,
        target: &Target<'_>,
        release: &Release,
        change: &impl Change,
    ) -> Result<(), StoreError> {
        let reading = ColdReading::new(&self.core.log);
        let (rows, positions) = match target {
            Target::Ids { ids, .. } => (ids.len(), ids.len()),
            Target::Keys { keys, .. } => (keys.len(), keys.positions()),
        };
        self.counters.count_update(rows);
        let _lists = self.claim_lists(rows * LIST_BYTES);
        let marks = if matches!(release.rows, Released::None) { 0 } else { positions };
        let done = (0..marks).map(|_| AtomicBool::new(false)).collect();
        let counts_uses = marks == 0 && matches!(target, Target::Ids { .. });
        let changing = Changing { reading, release, done, counts_uses, change };
        let misses = match *target {
            Target::Ids { table, ids } => self.update_ids(&changing, table, ids),
            Target::Keys { keys, known } => self.update_keys(&changing, keys, known),
        };
        let result = misses.and_then(|misses| self.update_cold(&changing, misses));
        if result.is_err() {
            match *target {
                Target::Ids { table, ids } => self.give_back(&changing, &self.keys(table, ids)),
                Target::Keys { keys, .. } => self.give_back(&changing, keys),
            }
        }
        if marks > 0 {
            self.tickets.gate.open();
        }
        result.and_then(|()| self.shrink_if_over())?;
        self.clean_if_behind(rows);
        Ok(())
    }

    /// Change the rows of `ids` that are in memory or missing. Returns the cold rows.
    fn update_ids<C: Change>(
        &self,
        changing: &Changing<'_, C>,
        table: &TableState,
        ids: &[u64],
    ) -> Result<Vec<Miss>, StoreError> {
        if self.workers.share(ids.len()) {
            return self.update_keys(changing, &self.keys(table, ids), &[]);
        }
        let mut misses = Vec::new();
        for (number, ids) in ids.chunks(PIECE_ROWS).enumerate() {
            misses.extend(self.update_piece(changing, table, number * PIECE_ROWS, ids)?);
        }
        Ok(misses)
    }

    /// The part of [`Group::update_ids`] whose first id is at position `first`.
    ///
    /// A call that runs alone visits rows in the order of the ids, which saves grouping them by shard. With
    /// other calls running, this would make them wait for all shards.
    fn update_piece<C: Change>(
        &self,
        changing: &Changing<'_, C>,
        table: &TableState,
        first: usize,
        ids: &[u64],
    ) -> Result<Vec<Miss>, StoreError> {
        let &TableState { local, ref spec, .. } = table;
        let all: Option<Vec<_>> = if self.workers.is_alone() {
            self.shards.iter().map(|cell| cell.state.try_write()).collect()
        } else {
            None
        };
        let Some(mut all) = all else {
            let ids = TableIds { table: local, range: spec.ids, ids };
            return self.update_keys(changing, &Keys::new(&[ids], first, self.shards.len(), None), &[]);
        };
        let mut misses = Vec::new();
        let mut keys = [Key::default(); CHUNK];
        for (number, ids) in ids.chunks(CHUNK).enumerate() {
            let keys = &mut keys[..ids.len()];
            let ids = TableIds { table: local, range: spec.ids, ids };
            write_keys(keys, ids, first + number * CHUNK, self.shards.len());
            self.change_rows(changing, &mut all, keys, None, &mut misses)?;
        }
        drop(all);
        if !changing.done.is_empty() {
            self.shards.iter().for_each(|cell| cell.gate.open());
        }
        // Sorted by shard, so that rows of a shard are loaded together.
        misses.sort_by_key(|miss| miss.key.shard);
        Ok(misses)
    }

    /// Change the rows of `keys` that are in memory or missing. Returns the cold rows.
    fn update_keys<C: Change>(
        &self,
        changing: &Changing<'_, C>,
        keys: &Keys,
        known: &[Option<Known>],
    ) -> Result<Vec<Miss>, StoreError> {
        let done = self.for_each_shard(keys, |shard| {
            let known = known.get(shard).and_then(Option::as_ref);
            self.update_shard(changing, shard, keys.of_shard(shard), known)
        });
        let mut misses = Vec::new();
        for (_, result) in done {
            misses.extend(result?);
        }
        Ok(misses)
    }

    /// Change cold rows.
    fn update_cold<C: Change>(
        &self,
        changing: &Changing<'_, C>,
        mut misses: Vec<Miss>,
    ) -> Result<(), StoreError> {
        let mut rounds = 0;
        while !misses.is_empty() {
            rounds += 1;
            self.check_rounds(rounds, misses[0])?;
            let mut again = Vec::new();
            for chunk in misses.chunks(self.cold_chunk()) {
                again.extend(self.update_missing(changing, chunk)?);
            }
            misses = again;
        }
        Ok(())
    }

    /// Change the rows of one shard that are in memory or missing. Returns the cold rows.
    fn update_shard<C: Change>(
        &self,
        changing: &Changing<'_, C>,
        shard: usize,
        keys: &[Key],
        known: Option<&Known>,
    ) -> Result<Vec<Miss>, StoreError> {
        let cell = &self.shards[shard];
        let mut state = cell.state.write();
        let mut misses = Vec::new();
        let changed = self.change_rows(changing, &mut state, keys, known, &mut misses);
        drop(state);
        if !changing.done.is_empty() {
            cell.gate.open();
        }
        changed.map(|()| misses)
    }

    /// Change rows of locked shards, chunk by chunk: look them up, change resident rows, then create and
    /// change missing rows. Cold rows are added to the misses.
    fn change_rows<C: Change>(
        &self,
        changing: &Changing<'_, C>,
        held: &mut impl Changeable,
        keys: &[Key],
        known: Option<&Known>,
        misses: &mut Vec<Miss>,
    ) -> Result<(), StoreError> {
        let mut looked = [None; CHUNK];
        let mut begin = 0;
        let of_one_table = keys.chunk_by(|one, next| one.table == next.table);
        for keys in of_one_table.flat_map(|keys| keys.chunks(CHUNK)) {
            let found = if let Some(known) = known.filter(|known| known.edits == held.edits()) {
                if !changing.done.is_empty() {
                    let index_of = held.index_of(keys[0].table);
                    for key in keys {
                        index_of(key).prefetch(key.id, key.hash);
                    }
                }
                &known.found[begin..][..keys.len()]
            } else {
                look_ahead(held.index_of(keys[0].table), keys, &mut looked);
                &looked[..keys.len()]
            };
            begin += keys.len();
            if found.iter().all(|found| found.is_some_and(|found| found.location.is_resident())) {
                self.change_resident(changing, held, keys, found)?;
                continue;
            }
            let (mut resident, mut entries, mut unborn) = (Vec::new(), Vec::new(), Vec::new());
            for (key, &found) in keys.iter().zip(found) {
                match found.map(|found| found.location.row()) {
                    None => unborn.push(*key),
                    Some(Some(row)) => misses.push(changing.reading.miss(*key, row)),
                    Some(None) => {
                        resident.push(*key);
                        entries.push(found);
                    }
                }
            }
            // Resident rows first, because creating a row may spill one of them.
            self.change_resident(changing, held, &resident, &entries)?;
            for key in unborn {
                let shard = held.shard_mut(&key);
                let (entry, slot) = shard.birth(&self.core, key.table, key.id)?;
                self.change_one(changing, shard, &key, entry, slot)?;
            }
        }
        Ok(())
    }

    /// Change rows of one table that were found in memory.
    fn change_resident<C: Change>(
        &self,
        changing: &Changing<'_, C>,
        held: &mut impl Changeable,
        keys: &[Key],
        found: &[Option<Found>],
    ) -> Result<(), StoreError> {
        let (mut slots, mut rows) = ([0; CHUNK], [std::ptr::null_mut(); CHUNK]);
        let together = rows_together(&self.core);
        for (keys, found) in keys.chunks(together).zip(found.chunks(together)) {
            let all_changed = {
                let slots_of = held.slots_of(&self.core);
                let wanted = slots.iter_mut().zip(&mut rows);
                for ((key, found), (slot, row)) in keys.iter().zip(found).zip(wanted) {
                    *slot = found.and_then(|found| found.location.slot()).expect("the row is in memory");
                    *row = slots_of(key).prefetch(*slot);
                }
                changing.change.prefetch(keys);
                let changed = |(key, &slot): (&Key, &u32)| slots_of(key).is_changed(slot);
                keys.iter().zip(&slots).map(changed).fold(true, |all, changed| all & changed)
            };
            // One shard stands for all, which begin to count at about the same time.
            if changing.counts_uses && held.shard(&keys[0]).counts_uses() {
                for ((key, found), &slot) in keys.iter().zip(found).zip(&slots) {
                    let shard = held.shard(key);
                    // The first change of a row may belong to the read that loaded it.
                    if all_changed || shard.slots_in_place(&self.core).is_changed(slot) {
                        shard.touch(key.table, found.expect("as above").entry, slot, false);
                    }
                }
            }
            if !all_changed {
                for (key, &slot) in keys.iter().zip(&slots) {
                    held.shard_mut(key).begin_update(&self.core, slot)?;
                }
            }
            changing.change.change(keys, &rows[..keys.len()]);
            let entries = found.iter().map(|found| found.expect("as above").entry);
            match changing.release.rows {
                Released::None => {}
                // The usual case: training releases exactly the clocks that it took.
                Released::All => {
                    for (key, entry) in keys.iter().zip(entries) {
                        changing.done[key.position as usize].store(true, Relaxed);
                        held.shard_mut(key).release_clock(changing.release.ticket, key, entry);
                    }
                }
                Released::Some(_) => {
                    for (key, entry) in keys.iter().zip(entries) {
                        Self::release_clock(changing, held.shard_mut(key), key, entry);
                    }
                }
            }
        }
        Ok(())
    }

    /// Change the row in `slot`.
    fn change_one<C: Change>(
        &self,
        changing: &Changing<'_, C>,
        state: &mut Shard,
        key: &Key,
        entry: EntryRef,
        slot: u32,
    ) -> Result<(), StoreError> {
        state.begin_update(&self.core, slot)?;
        changing.change.change(&[*key], &[state.row(&self.core, slot)]);
        Self::release_clock(changing, state, key, entry);
        Ok(())
    }

    /// Read cold rows, load and change them. Returns the rows that have moved meanwhile.
    fn update_missing<C: Change>(
        &self,
        changing: &Changing<'_, C>,
        misses: &[Miss],
    ) -> Result<Vec<Miss>, StoreError> {
        let cold = self.read_cold(changing.reading.begun(), misses)?;
        let mut again = Vec::new();
        let mut number = 0;
        for misses in misses.chunk_by(|one, next| one.key.shard == next.key.shard) {
            let shard = misses[0].key.shard as usize;
            let mut elsewhere = Vec::new();
            let mut state = self.shards[shard].state.write();
            for Miss { key, .. } in misses {
                state.index(key.table).prefetch(key.id, key.hash);
            }
            for (miss, row) in misses.iter().zip((number..).map(|number| cold.row(number))) {
                let slot = match row {
                    Some(row) => state.admit(&self.core, miss, as_bytes(row), Reason::Use)?,
                    None => None,
                };
                let Some(slot) = slot else {
                    elsewhere.push(miss.key);
                    continue;
                };
                let entry = state.find(&miss.key).expect("the row was just loaded").entry;
                self.change_one(changing, &mut state, &miss.key, entry, slot)?;
            }
            drop(state);
            number += misses.len();
            if !changing.done.is_empty() {
                self.shards[shard].gate.open();
            }
            if !elsewhere.is_empty() {
                again.extend(self.update_shard(changing, shard, &elsewhere, None)?);
            }
        }
        Ok(again)
    }

    /// Release the clock of a row that is being changed.
    #[inline(always)]
    fn release_clock<C>(changing: &Changing<'_, C>, state: &mut Shard, key: &Key, entry: EntryRef) {
        if changing.release.rows.contains(key.position) {
            changing.done[key.position as usize].store(true, Relaxed);
            state.release_clock(changing.release.ticket, key, entry);
        }
    }

    /// After a failure: release the clocks of the rows that were not changed.
    fn give_back<C>(&self, changing: &Changing<'_, C>, keys: &Keys) {
        for (shard, cell) in self.shards.iter().enumerate() {
            let mut state = cell.state.write();
            for key in keys.of_shard(shard) {
                let reached = || changing.done[key.position as usize].load(Relaxed);
                if changing.release.rows.contains(key.position) && !reached() {
                    state.release_clock_of(changing.release.ticket, key);
                }
            }
            drop(state);
            cell.gate.open();
        }
    }

    /// Delete rows. Returns how many existed.
    ///
    /// # Errors
    /// When a row frozen for a checkpoint cannot be saved first.
    pub(crate) fn delete(&self, keys: &Keys) -> Result<usize, StoreError> {
        let mut deleted = 0;
        for (shard, cell) in self.shards.iter().enumerate() {
            if keys.of_shard(shard).is_empty() {
                continue;
            }
            let mut state = cell.state.write();
            for key in keys.of_shard(shard) {
                deleted += usize::from(state.delete(&self.core, key.table, key.id)?);
            }
            drop(state);
            cell.gate.open();
        }
        self.tickets.gate.open();
        self.counters.deletes.fetch_add(deleted as u64, Relaxed);
        Ok(deleted)
    }
}
