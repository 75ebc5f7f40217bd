//! Changing rows: put, rmw, and the fused backward of a lookup.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::StoreError;
use crate::cold::as_bytes;
use crate::group::Group;
use crate::index::{Found, Location, Place};
use crate::keys::{Key, Keys};
use crate::log::Reading;
use crate::shard::{Miss, Reason, Shard};
use crate::ticket::Released;
use crate::walk::walk;

/// Rows changed in one go.
pub(crate) const PENDING: usize = 16;

/// One change of many rows.
struct Change<'a, F> {
    keys: &'a Keys,
    released: &'a Released,
    /// Positions whose clock was given back; empty when none is to be.
    done: Vec<AtomicBool>,
    /// `work(keys, rows)` changes some rows of one table.
    work: &'a F,
}

/// Rows found in memory and not changed yet, so that several are changed in one go.
struct Pending {
    keys: [Key; PENDING],
    rows: [*mut f32; PENDING],
    len: usize,
}

impl Pending {
    fn new() -> Self {
        Self { keys: [Key::default(); PENDING], rows: [std::ptr::null_mut(); PENDING], len: 0 }
    }

    /// Whether a row of this table may join.
    #[inline]
    fn takes(&self, table: u32) -> bool {
        self.len < PENDING && (self.len == 0 || self.keys[0].table == table)
    }

    #[inline]
    fn push(&mut self, key: Key, row: *mut f32) {
        self.keys[self.len] = key;
        self.rows[self.len] = row;
        self.len += 1;
    }

    /// Change what waits.
    #[inline]
    fn flush(&mut self, work: &impl Fn(&[Key], &[*mut f32])) {
        if self.len > 0 {
            work(&self.keys[..self.len], &self.rows[..self.len]);
            self.len = 0;
        }
    }
}

impl Group {
    /// Run `work(keys, rows)` so that every row of `keys` (which must be distinct) is changed once, in
    /// place. Rows that are missing are born first, cold ones brought in. Clocks named by `released` are
    /// given back with the change, under the same lock.
    ///
    /// # Errors
    /// When rows cannot be read or room cannot be made; changes made so far stay, all clocks are given
    /// back.
    pub(crate) fn update(
        &self,
        keys: &Keys,
        released: &Released,
        work: &(impl Fn(&[Key], &[*mut f32]) + Sync),
    ) -> Result<(), StoreError> {
        self.counters.count_update(keys.len());
        let marks = if matches!(released, Released::None) { 0 } else { keys.positions() };
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

    fn make_change<F: Fn(&[Key], &[*mut f32]) + Sync>(
        &self,
        change: &Change<'_, F>,
    ) -> Result<(), StoreError> {
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
            self.check_rounds(rounds, misses[0])?;
            let mut again = Vec::new();
            for chunk in misses.chunks(self.cold_chunk()) {
                again.extend(self.update_missing(change, &reading, chunk)?);
            }
            misses = again;
        }
        Ok(())
    }

    /// Change the rows of one shard that are in memory or not born yet; the cold ones are returned.
    fn update_shard<F: Fn(&[Key], &[*mut f32]) + Sync>(
        &self,
        change: &Change<'_, F>,
        shard: usize,
        keys: &[Key],
    ) -> Result<Vec<Miss>, StoreError> {
        let cell = &self.shards[shard];
        let mut state = cell.state.write();
        let mut misses = Vec::new();
        let mut pending = Pending::new();
        let walked = walk::<true, _, _>(&self.core, &mut state, keys, |state, key, found| {
            let found = if let Some(found) = found {
                found
            } else {
                // A birth may push out a row whose address waits to be changed.
                pending.flush(change.work);
                let (place, slot) = state.birth(&self.core, key.table, key.id)?;
                Found { place, location: Location::resident(slot) }
            };
            if let Some(row) = found.location.row() {
                misses.push(Miss { key: *key, row });
                return Ok(());
            }
            let slot = found.location.slot().expect("a row is in memory or on the device");
            if !pending.takes(key.table) {
                pending.flush(change.work);
            }
            state.begin_update(&self.core, slot)?;
            pending.push(*key, state.row(&self.core, slot));
            Self::release_clock(change, state, key, found.place);
            Ok(())
        });
        // What was prepared is changed even if the walk ended early: its clock was given back.
        pending.flush(change.work);
        drop(state);
        if !change.done.is_empty() {
            cell.gate.open();
        }
        walked.map(|()| misses)
    }

    /// Read cold rows, bring them in and change them; those that moved meanwhile are returned.
    fn update_missing<F: Fn(&[Key], &[*mut f32]) + Sync>(
        &self,
        change: &Change<'_, F>,
        reading: &Reading<'_>,
        misses: &[Miss],
    ) -> Result<Vec<Miss>, StoreError> {
        let cold = self.read_cold(reading, misses)?;
        let mut again = Vec::new();
        let mut number = 0;
        for misses in misses.chunk_by(|one, next| one.key.shard == next.key.shard) {
            let shard = misses[0].key.shard as usize;
            let mut elsewhere = Vec::new();
            let mut state = self.shards[shard].state.write();
            for (miss, row) in misses.iter().zip((number..).map(|number| cold.row(number))) {
                let slot = match row {
                    Some(row) => state.admit(&self.core, miss, as_bytes(row), Reason::Use)?,
                    None => None,
                };
                let Some(slot) = slot else {
                    elsewhere.push(miss.key);
                    continue;
                };
                state.begin_update(&self.core, slot)?;
                (change.work)(&[miss.key], &[state.row(&self.core, slot)]);
                let place = state.find(&miss.key).expect("the row was just brought in").place;
                Self::release_clock(change, &mut state, &miss.key, place);
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

    /// Give the clock of a row back that is being changed.
    #[inline]
    fn release_clock<F>(change: &Change<'_, F>, state: &mut Shard, key: &Key, place: Place) {
        if change.released.contains(key.position) {
            change.done[key.position as usize].store(true, Relaxed);
            state.release_clock(key.table, key.id, place);
        }
    }

    /// After a failure: give back the clocks of the rows that were not reached.
    fn give_back<F>(&self, change: &Change<'_, F>) {
        for (shard, cell) in self.shards.iter().enumerate() {
            let mut state = cell.state.write();
            for key in change.keys.of_shard(shard) {
                let reached = || change.done[key.position as usize].load(Relaxed);
                if change.released.contains(key.position) && !reached() {
                    state.release_clock_of(key);
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
