//! Resolves keys to addresses that stay valid while they are used.

use rowmill_index::Found;
use rowmill_kernels::RowPtr;
use rowmill_log::Reading;
use rowmill_sync::RwLockReadGuard;

use super::acquire::Entered;
use crate::error::StoreError;
use crate::group::{ColdRows, Group};
use crate::memory::Claim;
use crate::seeded::{self, SeededBug};
use crate::shard::{Miss, Reason, Shard};
use crate::table::{Key, Keys};

impl Group {
    /// Run `work` on the addresses of all rows of `keys` while no row can move or change.
    ///
    /// Resident rows are used in place. Cold rows are read into a buffer, used there, and loaded into memory
    /// afterwards.
    ///
    /// # Errors
    /// When a row cannot be read, or there are too many cold rows.
    pub(crate) fn with_rows<T>(
        &self,
        reading: &Reading<'_>,
        keys: &Keys,
        entered: Entered,
        work: impl FnOnce(&[RowPtr]) -> T,
    ) -> Result<T, StoreError> {
        let claim = |rows| self.claim_piece(rows).map(Some);
        self.with_claimed(reading, keys, entered, claim, work)
            .map(|done| done.expect("the claim returns memory or an error"))
    }

    /// As [`Group::with_rows`], or `None` if the memory for cold rows has no room for all of them. `work` has
    /// not run then, and the caller processes its rows in pieces.
    pub(crate) fn try_with_rows<T>(
        &self,
        reading: &Reading<'_>,
        keys: &Keys,
        entered: Entered,
        work: impl FnOnce(&[RowPtr]) -> T,
    ) -> Result<Option<T>, StoreError> {
        self.with_claimed(reading, keys, entered, |rows| Ok(self.try_claim_cold(rows)), work)
    }

    fn with_claimed<T>(
        &self,
        reading: &Reading<'_>,
        keys: &Keys,
        mut entered: Entered,
        claim: impl Fn(usize) -> Result<Option<Claim>, StoreError>,
        work: impl FnOnce(&[RowPtr]) -> T,
    ) -> Result<Option<T>, StoreError> {
        let mut claims = Vec::new();
        let mut cold: Vec<(Vec<Miss>, ColdRows)> = Vec::new();
        let mut initial = Vec::new();
        let mut fixed = vec![false; keys.positions()];
        let mut rounds = 0;
        loop {
            rounds += 1;
            if let Some(&miss) = entered.misses.first() {
                self.check_rounds(rounds, miss)?;
            }
            let missing = entered.misses.len() + entered.unseen.len();
            if missing > 0 {
                let Some(claim) = claim(missing)? else { return Ok(None) };
                claims.push(claim);
            }
            let unseen = std::mem::take(&mut entered.unseen);
            let width = self.core.layout.state_offset() / 4;
            let values = self.initial_rows(&unseen, width);
            for (number, key) in unseen.iter().enumerate() {
                entered.rows[key.position as usize] = values[number * width..].as_ptr();
                fixed[key.position as usize] = true;
            }
            initial.push(values);
            let misses = std::mem::take(&mut entered.misses);
            // Whether rows moved before they could be read.
            let mut lost = false;
            for chunk in misses.chunks(self.read_chunk()) {
                let rows = self.read_claimed(reading, chunk)?;
                for (number, miss) in chunk.iter().enumerate() {
                    if let Some(row) = rows.row(number) {
                        // Moving `rows` below does not move the floats on the heap.
                        entered.rows[miss.key.position as usize] = row.as_ptr();
                        fixed[miss.key.position as usize] = true;
                    } else {
                        lost = true;
                    }
                }
                cold.push((chunk.to_vec(), rows));
            }
            if seeded::has(SeededBug::StaleAddress) {
                // Give other threads a chance to spill rows.
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
            let guards: Vec<_> = self.shards.iter().map(|cell| cell.state.read()).collect();
            self.verify(keys, &guards, &mut entered, &fixed, lost);
            if entered.misses.is_empty() && entered.unseen.is_empty() {
                let result = work(&entered.rows);
                drop(guards);
                for (misses, rows) in &cold {
                    // The caller has its rows. If no room can be made for them in memory, the next change of
                    // a row reports the error.
                    let _ = self.admit_cold(misses, rows, Reason::Use);
                }
                return Ok(Some(result));
            }
        }
    }

    /// The initial weights of missing rows, as rows store them, `width` floats each.
    fn initial_rows(&self, unseen: &[Key], width: usize) -> Vec<f32> {
        let tables = self.tables.read();
        let mut rows = vec![0.0; unseen.len() * width];
        for (row, key) in rows.chunks_exact_mut(width).zip(unseen) {
            self.core.initialize_weights(&tables[key.table as usize], key.id, row);
        }
        rows
    }

    /// Look up the rows again in shards whose slots have changed since. Rows that have left memory become
    /// misses, deleted rows unseen. If reads were `lost`, all shards are checked.
    fn verify(
        &self,
        keys: &Keys,
        guards: &[RwLockReadGuard<'_, Shard>],
        entered: &mut Entered,
        fixed: &[bool],
        lost: bool,
    ) {
        for (shard, state) in guards.iter().enumerate() {
            let keys = keys.of_shard(shard);
            let unchanged = entered.moves[shard] == state.moves() || seeded::has(SeededBug::StaleAddress);
            if keys.is_empty() || (unchanged && !lost) {
                continue;
            }
            entered.moves[shard] = state.moves();
            for key in keys {
                let position = key.position as usize;
                if fixed[position] {
                    continue;
                }
                let Some(Found { location, .. }) = state.find(key) else {
                    // Deleted meanwhile: it reads as its initial values.
                    entered.unseen.push(*key);
                    continue;
                };
                match (location.slot(), location.row()) {
                    (Some(slot), _) => entered.rows[position] = state.row(&self.core, slot),
                    (None, Some(row)) => {
                        entered.rows[position] = std::ptr::null();
                        entered.misses.push(Miss { key: *key, row });
                    }
                    (None, None) => unreachable!("a row is in memory or on the device"),
                }
            }
        }
    }
}
