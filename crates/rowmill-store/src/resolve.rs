//! From keys to addresses that stay valid while they are used.

use parking_lot::RwLockReadGuard;
use rowmill_kernels::RowPtr;

use crate::StoreError;
use crate::acquire::Entered;
use crate::cold::ColdRows;
use crate::group::Group;
use crate::keys::Keys;
use crate::log::Reading;
use crate::shard::{Miss, Reason, Shard};

impl Group {
    /// Run `work` on the addresses of all rows of `keys` while nothing can move or change them.
    ///
    /// Rows in memory are used where they are. Cold rows are read, used from the buffer they were read
    /// into, and brought into memory afterwards.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub(crate) fn with_rows<T>(
        &self,
        reading: &Reading<'_>,
        keys: &Keys,
        mut entered: Entered,
        work: impl FnOnce(&[RowPtr]) -> T,
    ) -> Result<T, StoreError> {
        let mut cold: Vec<(Vec<Miss>, ColdRows)> = Vec::new();
        let mut initial = Vec::new();
        let mut fixed = vec![false; keys.len()];
        let mut rounds = 0;
        loop {
            rounds += 1;
            if let Some(&miss) = entered.misses.first() {
                self.check_rounds(rounds, keys, miss)?;
            }
            let unseen = std::mem::take(&mut entered.unseen);
            let values = self.initial_rows(keys, &unseen);
            for (number, &position) in unseen.iter().enumerate() {
                entered.rows[position as usize] = values[number * self.core.layout.dim..].as_ptr();
                fixed[position as usize] = true;
            }
            initial.push(values);
            let misses = std::mem::take(&mut entered.misses);
            for chunk in misses.chunks(self.cold_chunk()) {
                let rows = self.read_cold(reading, keys, chunk)?;
                for (number, miss) in chunk.iter().enumerate() {
                    if let Some(row) = rows.row(number) {
                        // Moving `rows` below does not move the floats.
                        entered.rows[miss.position as usize] = row.as_ptr();
                        fixed[miss.position as usize] = true;
                    }
                }
                cold.push((chunk.to_vec(), rows));
            }
            let guards: Vec<_> = self.shards.iter().map(|cell| cell.state.read()).collect();
            self.verify(keys, &guards, &mut entered, &fixed);
            if entered.misses.is_empty() && entered.unseen.is_empty() {
                let result = work(&entered.rows);
                drop(guards);
                for (misses, rows) in &cold {
                    // The caller has its rows: when another one cannot be written out to make room, the
                    // next change reports it.
                    let _ = self.admit_cold(keys, misses, rows, Reason::Use);
                }
                return Ok(result);
            }
        }
    }

    /// Values of rows that do not exist, `dim` floats each.
    fn initial_rows(&self, keys: &Keys, unseen: &[u32]) -> Vec<f32> {
        let dim = self.core.layout.dim;
        let tables = self.tables.read();
        let mut rows = vec![0.0; unseen.len() * dim];
        for (row, &position) in rows.chunks_exact_mut(dim).zip(unseen) {
            let (table, id) = keys.at(position);
            tables[table as usize].initializer.fill(id, row);
        }
        rows
    }

    /// Look again at the shards whose slots changed since their addresses were taken. Rows that left
    /// memory meanwhile become misses, deleted ones unseen.
    fn verify(
        &self,
        keys: &Keys,
        guards: &[RwLockReadGuard<'_, Shard>],
        entered: &mut Entered,
        fixed: &[bool],
    ) {
        for (shard, state) in guards.iter().enumerate() {
            let positions = keys.of_shard(shard);
            let unchanged = entered.moves[shard] == state.moves();
            let complete = || positions.iter().all(|&position| !entered.rows[position as usize].is_null());
            if positions.is_empty() || (unchanged && complete()) {
                continue;
            }
            entered.moves[shard] = state.moves();
            for &position in positions {
                if fixed[position as usize] {
                    continue;
                }
                let (table, id) = keys.at(position);
                let Some(place) = state.index(table).find(id) else {
                    // Deleted meanwhile: it reads as it would be born.
                    entered.unseen.push(position);
                    continue;
                };
                let location = state.index(table).location(place);
                match (location.slot(), location.row()) {
                    (Some(slot), _) => entered.rows[position as usize] = state.row(&self.core, slot),
                    (None, Some(row)) => {
                        entered.rows[position as usize] = std::ptr::null();
                        entered.misses.push(Miss { position, row, shard: shard as u32 });
                    }
                    (None, None) => unreachable!("a row is in memory or on the device"),
                }
            }
        }
    }
}
