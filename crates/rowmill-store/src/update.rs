//! Changing rows: put, rmw, and the fused backward of a lookup.

use std::sync::atomic::Ordering::Relaxed;

use crate::StoreError;
use crate::group::Group;
use crate::keys::Keys;
use crate::log::Reading;
use crate::read::{AHEAD, as_bytes, copy_row, prefetch};
use crate::shard::{Miss, Shard};
use crate::ticket::Released;

impl Group {
    /// Run `change(position, row)` once for every row of `keys` (which must be distinct), in place. Rows
    /// that are missing are born first, cold ones brought in. Clocks named by `released` are given back
    /// with the change, under the same lock.
    ///
    /// # Errors
    /// When rows cannot be read or room cannot be made; changes made so far stay.
    pub(crate) fn update(
        &self,
        keys: &Keys,
        released: &Released,
        change: &(impl Fn(u32, *mut f32) + Sync),
    ) -> Result<(), StoreError> {
        self.counters.count_update(keys.len());
        let reading = self.core.log.reading();
        let first = self.for_each_shard(keys, |shard| {
            self.update_shard(keys, shard, keys.of_shard(shard), released, change)
        });
        let mut misses = Vec::new();
        for (_, result) in first {
            misses.extend(result?);
        }
        let mut rounds = 0;
        while !misses.is_empty() {
            rounds += 1;
            self.check_rounds(rounds, keys, &misses[0])?;
            let mut again = Vec::new();
            for chunk in misses.chunks(self.cold_chunk()) {
                again.extend(self.update_missing(&reading, keys, chunk, released, change)?);
            }
            misses = again;
        }
        Ok(())
    }

    /// Change the rows of one shard that are in memory or not born yet; the cold ones are returned.
    fn update_shard(
        &self,
        keys: &Keys,
        shard: usize,
        positions: &[u32],
        released: &Released,
        change: &(impl Fn(u32, *mut f32) + Sync),
    ) -> Result<Vec<Miss>, StoreError> {
        let cell = &self.shards[shard];
        let mut state = cell.state.write();
        let mut misses = Vec::new();
        let mut opened = false;
        for positions in positions.chunks(AHEAD) {
            for &position in positions {
                let (table, id) = keys.at(position);
                state.index(table).prefetch(id);
            }
            for &position in positions {
                let (table, id) = keys.at(position);
                if let Some(place) = state.index(table).find(id)
                    && let Some(slot) = state.index(table).location(place).slot()
                {
                    prefetch(state.row(&self.core, slot));
                }
            }
            for &position in positions {
                let (table, id) = keys.at(position);
                let (place, slot) = match state.index(table).find(id) {
                    None => state.birth(&self.core, table, id)?,
                    Some(place) => {
                        let location = state.index(table).location(place);
                        if let Some(row) = location.row() {
                            misses.push(Miss { position, row });
                            continue;
                        }
                        (place, location.slot().expect("a row is in memory or on the device"))
                    }
                };
                self.change_one(&mut state, keys, position, slot, change)?;
                if released.contains(position) {
                    state.release_clock(table, id, place);
                    opened = true;
                }
            }
        }
        drop(state);
        if opened {
            cell.gate.open();
        }
        Ok(misses)
    }

    /// Read cold rows, bring them in and change them; those that moved meanwhile are returned.
    fn update_missing(
        &self,
        reading: &Reading<'_>,
        keys: &Keys,
        misses: &[Miss],
        released: &Released,
        change: &(impl Fn(u32, *mut f32) + Sync),
    ) -> Result<Vec<Miss>, StoreError> {
        let width = self.core.layout.stride / 4;
        let mut rows = vec![0.0_f32; misses.len() * width];
        let mut read = vec![false; misses.len()];
        self.read_cold(reading, keys, misses, |number, bytes| {
            copy_row(bytes, &mut rows[number * width..][..width]);
            read[number] = true;
        })?;
        let mut again = Vec::new();
        for (number, miss) in misses.iter().enumerate() {
            let (table, id) = keys.at(miss.position);
            let shard = self.home(keys, miss.position);
            let cell = &self.shards[shard];
            let mut state = cell.state.write();
            let place = state.index(table).find(id);
            let cold_here = place.filter(|&place| state.index(table).location(place).row() == Some(miss.row));
            match cold_here {
                Some(place) if read[number] => {
                    let bytes = as_bytes(&rows[number * width..][..width]);
                    let slot = state.admit(&self.core, table, id, place, miss.row, bytes)?;
                    self.change_one(&mut state, keys, miss.position, slot, change)?;
                    if released.contains(miss.position) {
                        state.release_clock(table, id, place);
                        drop(state);
                        cell.gate.open();
                    }
                }
                _ => {
                    drop(state);
                    again.extend(self.update_shard(keys, shard, &[miss.position], released, change)?);
                }
            }
        }
        Ok(again)
    }

    #[inline]
    fn change_one(
        &self,
        state: &mut Shard,
        keys: &Keys,
        position: u32,
        slot: u32,
        change: &impl Fn(u32, *mut f32),
    ) -> Result<(), StoreError> {
        debug_assert!((position as usize) < keys.len());
        state.begin_update(&self.core, slot)?;
        change(position, state.row(&self.core, slot));
        Ok(())
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
        self.counters.deletes.fetch_add(deleted as u64, Relaxed);
        Ok(deleted)
    }
}
