//! Changing rows: put, rmw, and the fused backward of a lookup.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::StoreError;
use crate::cold::as_bytes;
use crate::group::Group;
use crate::keys::Keys;
use crate::log::Reading;
use crate::read::{AHEAD, prefetch};
use crate::shard::{Miss, Reason, Shard};
use crate::ticket::Released;

/// One change of many rows.
struct Change<'a, F> {
    keys: &'a Keys,
    released: &'a Released,
    /// Positions whose clock was given back; empty when none is to be.
    done: Vec<AtomicBool>,
    /// `work(position, row)` changes one row.
    work: &'a F,
}

impl Group {
    /// Run `work(position, row)` once for every row of `keys` (which must be distinct), in place. Rows
    /// that are missing are born first, cold ones brought in. Clocks named by `released` are given back
    /// with the change, under the same lock.
    ///
    /// # Errors
    /// When rows cannot be read or room cannot be made; changes made so far stay, all clocks are given
    /// back.
    pub(crate) fn update(
        &self,
        keys: &Keys,
        released: &Released,
        work: &(impl Fn(u32, *mut f32) + Sync),
    ) -> Result<(), StoreError> {
        self.counters.count_update(keys.len());
        let marks = if matches!(released, Released::None) { 0 } else { keys.len() };
        let done = (0..marks).map(|_| AtomicBool::new(false)).collect();
        let change = Change { keys, released, done, work };
        let result = self.make_change(&change);
        if result.is_err() {
            self.give_back(&change);
        }
        if marks > 0 {
            self.tickets.gate.open();
        }
        result.and_then(|()| self.shrink_if_over())
    }

    fn make_change<F: Fn(u32, *mut f32) + Sync>(&self, change: &Change<'_, F>) -> Result<(), StoreError> {
        let keys = change.keys;
        let reading = self.core.log.reading();
        let first = self.for_each_shard(keys, |shard| self.update_shard(change, shard, keys.of_shard(shard)));
        let mut misses = Vec::new();
        for (_, result) in first {
            misses.extend(result?);
        }
        let mut rounds = 0;
        while !misses.is_empty() {
            rounds += 1;
            self.check_rounds(rounds, keys, misses[0])?;
            let mut again = Vec::new();
            for chunk in misses.chunks(self.cold_chunk()) {
                again.extend(self.update_missing(change, &reading, chunk)?);
            }
            misses = again;
        }
        Ok(())
    }

    /// Change the rows of one shard that are in memory or not born yet; the cold ones are returned.
    fn update_shard<F: Fn(u32, *mut f32) + Sync>(
        &self,
        change: &Change<'_, F>,
        shard: usize,
        positions: &[u32],
    ) -> Result<Vec<Miss>, StoreError> {
        let cell = &self.shards[shard];
        let mut state = cell.state.write();
        let mut misses = Vec::new();
        for positions in positions.chunks(AHEAD) {
            for &position in positions {
                let (table, id) = change.keys.at(position);
                state.index(table).prefetch(id);
            }
            for &position in positions {
                let (table, id) = change.keys.at(position);
                if let Some(place) = state.index(table).find(id)
                    && let Some(slot) = state.index(table).location(place).slot()
                {
                    prefetch(state.row(&self.core, slot));
                }
            }
            for &position in positions {
                let (table, id) = change.keys.at(position);
                let slot = match state.index(table).find(id) {
                    None => state.birth(&self.core, table, id)?.1,
                    Some(place) => {
                        let location = state.index(table).location(place);
                        if let Some(row) = location.row() {
                            misses.push(Miss { position, row, shard: shard as u32 });
                            continue;
                        }
                        location.slot().expect("a row is in memory or on the device")
                    }
                };
                self.change_one(change, &mut state, position, slot)?;
            }
        }
        drop(state);
        if !change.done.is_empty() {
            cell.gate.open();
        }
        Ok(misses)
    }

    /// Read cold rows, bring them in and change them; those that moved meanwhile are returned.
    fn update_missing<F: Fn(u32, *mut f32) + Sync>(
        &self,
        change: &Change<'_, F>,
        reading: &Reading<'_>,
        misses: &[Miss],
    ) -> Result<Vec<Miss>, StoreError> {
        let cold = self.read_cold(reading, change.keys, misses)?;
        let mut again = Vec::new();
        let mut number = 0;
        for misses in misses.chunk_by(|one, next| one.shard == next.shard) {
            let shard = misses[0].shard as usize;
            let mut elsewhere = Vec::new();
            let mut state = self.shards[shard].state.write();
            for (miss, row) in misses.iter().zip((number..).map(|number| cold.row(number))) {
                let (table, id) = change.keys.at(miss.position);
                let slot = match row {
                    Some(row) => state.admit(&self.core, table, id, miss.row, as_bytes(row), Reason::Use)?,
                    None => None,
                };
                match slot {
                    Some(slot) => self.change_one(change, &mut state, miss.position, slot)?,
                    None => elsewhere.push(miss.position),
                }
            }
            drop(state);
            number += misses.len();
            if !change.done.is_empty() {
                self.shards[shard].gate.open();
            }
            if !elsewhere.is_empty() {
                again.extend(self.update_shard(change, shard, &elsewhere)?);
            }
        }
        Ok(again)
    }

    #[inline]
    fn change_one<F: Fn(u32, *mut f32)>(
        &self,
        change: &Change<'_, F>,
        state: &mut Shard,
        position: u32,
        slot: u32,
    ) -> Result<(), StoreError> {
        state.begin_update(&self.core, slot)?;
        (change.work)(position, state.row(&self.core, slot));
        if change.released.contains(position) {
            change.done[position as usize].store(true, Relaxed);
            let (table, id) = change.keys.at(position);
            let place = state.index(table).find(id).expect("the row was just changed");
            state.release_clock(table, id, place);
        }
        Ok(())
    }

    /// After a failure: give back the clocks of the rows that were not reached.
    fn give_back<F>(&self, change: &Change<'_, F>) {
        for (shard, cell) in self.shards.iter().enumerate() {
            let mut state = cell.state.write();
            for &position in change.keys.of_shard(shard) {
                let reached = || change.done[position as usize].load(Relaxed);
                let (table, id) = change.keys.at(position);
                if change.released.contains(position)
                    && !reached()
                    && let Some(place) = state.index(table).find(id)
                {
                    state.release_clock(table, id, place);
                }
            }
            drop(state);
            cell.gate.open();
        }
    }

    /// Remove rows; how many there were.
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
            for &position in keys.of_shard(shard) {
                let (table, id) = keys.at(position);
                deleted += usize::from(state.delete(&self.core, table, id)?);
            }
            drop(state);
            cell.gate.open();
        }
        self.tickets.gate.open();
        self.counters.deletes.fetch_add(deleted as u64, Relaxed);
        Ok(deleted)
    }
}
