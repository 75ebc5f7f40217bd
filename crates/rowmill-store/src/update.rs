//! Changing rows: put, rmw, and the fused backward of a lookup.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::RwLockWriteGuard;

use crate::StoreError;
use crate::cold::as_bytes;
use crate::group::Group;
use crate::index::{Found, Location, Place};
use crate::keys::{Key, Keys};
use crate::log::Reading;
use crate::shard::{Miss, Reason, Shard};
use crate::ticket::Released;
use crate::walk::{Known, walk, walk_known};

/// Rows changed in one go.
pub(crate) const PENDING: usize = 16;

/// What becomes of rows.
pub(crate) trait Change: Sync {
    /// Start loading what changing this row looks at.
    #[inline(always)]
    fn prefetch(&self, _: &Key) {}

    /// Change some rows of one table, at most [`PENDING`].
    fn change(&self, keys: &[Key], rows: &[*mut f32]);
}

impl<F: Fn(&[Key], &[*mut f32]) + Sync> Change for F {
    fn change(&self, keys: &[Key], rows: &[*mut f32]) {
        self(keys, rows);
    }
}

/// One change of many rows.
struct Changing<'a, C> {
    keys: &'a Keys,
    /// What is known of them by shard, or nothing.
    known: &'a [Option<Known>],
    released: &'a Released,
    /// Positions whose clock was given back; empty when none is to be.
    done: Vec<AtomicBool>,
    change: &'a C,
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
    fn flush(&mut self, change: &impl Change) {
        if self.len > 0 {
            change.change(&self.keys[..self.len], &self.rows[..self.len]);
            self.len = 0;
        }
    }
}

impl Group {
    /// Change every row of `keys` (which must be distinct) once, in place. Rows that are missing are born first, cold ones brought in. Clocks named by `released` are
    /// given back with the change, under the same lock.
    /// `known` is what a read of the same keys found, by shard, or empty.
    ///
    /// # Errors
    /// When rows cannot be read or room cannot be made; changes made so far stay, all clocks are given
    /// back.
    pub(crate) fn update(
        &self,
        keys: &Keys,
        known: &[Option<Known>],
        released: &Released,
        change: &impl Change,
    ) -> Result<(), StoreError> {
        self.counters.count_update(keys.len());
        let marks = if matches!(released, Released::None) { 0 } else { keys.positions() };
        let done = (0..marks).map(|_| AtomicBool::new(false)).collect();
        let changing = Changing { keys, known, released, done, change };
        let result = self.make_change(&changing);
        if result.is_err() {
            self.give_back(&changing);
        }
        if marks > 0 {
            self.tickets.gate.open();
        }
        result.and_then(|()| self.shrink_if_over())
    }

    fn make_change<C: Change>(&self, changing: &Changing<'_, C>) -> Result<(), StoreError> {
        let keys = changing.keys;
        let reading = self.core.log.reading();
        let first = self.for_each_shard(keys, |shard| {
            let known = changing.known.get(shard).and_then(Option::as_ref);
            self.update_shard(changing, shard, keys.of_shard(shard), known)
        });
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
                again.extend(self.update_missing(changing, &reading, chunk)?);
            }
            misses = again;
        }
        Ok(())
    }

    /// Change the rows of one shard that are in memory or not born yet; the cold ones are returned.
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
        let mut pending = Pending::new();
        let mut visit = |state: &mut RwLockWriteGuard<'_, Shard>, key: &Key, found: Option<Found>| {
            let found = if let Some(found) = found {
                found
            } else {
                // A birth may push out a row whose address waits to be changed.
                pending.flush(changing.change);
                let (place, slot) = state.birth(&self.core, key.table, key.id)?;
                Found { place, location: Location::resident(slot) }
            };
            if let Some(row) = found.location.row() {
                misses.push(Miss { key: *key, row });
                return Ok(());
            }
            let slot = found.location.slot().expect("a row is in memory or on the device");
            if !pending.takes(key.table) {
                pending.flush(changing.change);
            }
            state.begin_update(&self.core, slot)?;
            pending.push(*key, state.row(&self.core, slot));
            Self::release_clock(changing, state, key, found.place);
            Ok(())
        };
        let ahead = |key: &Key| changing.change.prefetch(key);
        let walked = match known.filter(|known| known.edits == state.edits()) {
            Some(known) => {
                let entries = !changing.done.is_empty();
                walk_known(&self.core, &mut state, (keys, known), entries, ahead, &mut visit)
            }
            None => walk::<true, _, _>(&self.core, &mut state, keys, ahead, &mut visit),
        };
        // What was prepared is changed even if the walk ended early: its clock was given back.
        pending.flush(changing.change);
        drop(state);
        if !changing.done.is_empty() {
            cell.gate.open();
        }
        walked.map(|()| misses)
    }

    /// Read cold rows, bring them in and change them; those that moved meanwhile are returned.
    fn update_missing<C: Change>(
        &self,
        changing: &Changing<'_, C>,
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
                changing.change.change(&[miss.key], &[state.row(&self.core, slot)]);
                let place = state.find(&miss.key).expect("the row was just brought in").place;
                Self::release_clock(changing, &mut state, &miss.key, place);
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

    /// Give the clock of a row back that is being changed.
    #[inline]
    fn release_clock<C>(changing: &Changing<'_, C>, state: &mut Shard, key: &Key, place: Place) {
        if changing.released.contains(key.position) {
            changing.done[key.position as usize].store(true, Relaxed);
            state.release_clock(key.table, key.id, place);
        }
    }

    /// After a failure: give back the clocks of the rows that were not reached.
    fn give_back<C>(&self, changing: &Changing<'_, C>) {
        for (shard, cell) in self.shards.iter().enumerate() {
            let mut state = cell.state.write();
            for key in changing.keys.of_shard(shard) {
                let reached = || changing.done[key.position as usize].load(Relaxed);
                if changing.released.contains(key.position) && !reached() {
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
