//! Eviction: deletes rows of a table by its eviction rule.
//!
//! No thread changes rows while an eviction chooses them. So the choice depends on the rows alone, not on the
//! number of shards, the location of rows or the time of day. Rows whose clock a step holds are not evicted.

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use rowmill_log::Reading;
use rowmill_rows::{EvictionRule, RowLayout};
use rowmill_sync::{RwLock, ranks};

use crate::error::StoreError;
use crate::group::Group;
use crate::shard::Miss;
use crate::table::{Key, TableState, floats_of, rank_of_score, stamp_of};

/// Time between two evictions of one call, in which changes of rows that wait for the first one can begin.
const PAUSE: Duration = Duration::from_micros(200);

/// The rows chosen for eviction so far.
enum Chosen {
    /// All rows whose rank is below `limit`.
    Below { limit: u64, ids: Vec<u64> },
    /// The `count` rows with the lowest (rank, id). The highest of them is on top of the heap.
    Lowest { count: usize, ranked: BinaryHeap<(u64, u64)> },
}

impl Chosen {
    fn add(&mut self, rank: u64, id: u64) {
        match self {
            Self::Below { limit, ids } => {
                if rank < *limit {
                    ids.push(id);
                }
            }
            Self::Lowest { count, ranked } => {
                if ranked.len() < *count {
                    ranked.push((rank, id));
                } else if let Some(mut highest) = ranked.peek_mut()
                    && (rank, id) < *highest
                {
                    *highest = (rank, id);
                }
            }
        }
    }

    fn into_ids(self) -> Vec<u64> {
        match self {
            Self::Below { ids, .. } => ids,
            Self::Lowest { ranked, .. } => ranked.into_iter().map(|(_, id)| id).collect(),
        }
    }
}

impl Group {
    /// Run the automatic evictions that have become due with a step of `tables`. Changes of rows that wait for
    /// one of them go on before the next.
    ///
    /// # Errors
    /// As [`Group::evict`].
    pub(crate) fn evict_due<'a>(
        &self,
        changes: &RwLock<(), ranks::Changes>,
        tables: impl Iterator<Item = &'a Arc<TableState>>,
    ) -> Result<(), StoreError> {
        for (number, table) in tables.filter(|table| table.take_due_eviction()).enumerate() {
            if number > 0 {
                std::thread::sleep(PAUSE);
            }
            self.evict(changes, table)?;
        }
        Ok(())
    }

    /// Delete the rows that the table's rule selects, blocking changes of rows meanwhile. Returns their ids,
    /// ascending.
    ///
    /// # Errors
    /// A table without an eviction rule, a row that cannot be read, or a failed write.
    pub(crate) fn evict(
        &self,
        changes: &RwLock<(), ranks::Changes>,
        table: &TableState,
    ) -> Result<Vec<u64>, StoreError> {
        let Some(eviction) = table.spec.eviction else {
            return Err(StoreError::Option {
                option: "eviction",
                expected: format!("set when table {:?} is created, for it to evict rows", table.name),
                got: "None".into(),
            });
        };
        let _nobody_changes = changes.write();
        let Some(mut chosen) = self.nothing_chosen(table, eviction.rule) else { return Ok(Vec::new()) };
        let reading = self.core.log.reading();
        for cell in &self.shards {
            let mut ids = Vec::new();
            cell.state.read().index(table.local).for_each(|id, _| ids.push(id));
            for ids in ids.chunks(self.cold_chunk()) {
                self.judge(&reading, table, eviction.rule, ids, &mut chosen)?;
            }
        }
        let mut removed = self.remove_unheld(table, &chosen.into_ids())?;
        removed.sort_unstable();
        table.count_evicted(removed.len());
        Ok(removed)
    }

    /// The criterion of a rule at this moment; `None` when no row can meet it.
    fn nothing_chosen(&self, table: &TableState, rule: EvictionRule) -> Option<Chosen> {
        let below = |limit| Some(Chosen::Below { limit, ids: Vec::new() });
        match rule {
            EvictionRule::TtlSteps { steps } => below(table.steps().checked_sub(steps)?),
            EvictionRule::TtlSeconds { seconds } => below(table.events.now()?.checked_sub(seconds)?),
            EvictionRule::NormBelow { norm } => below((f64::from(norm) * f64::from(norm)).to_bits()),
            EvictionRule::LeastFrequent { max_rows }
            | EvictionRule::LowestScore { max_rows }
            | EvictionRule::LowestNorm { max_rows } => {
                let count =
                    (self.len(table.local) as u64).checked_sub(max_rows).filter(|&count| count > 0)?;
                Some(Chosen::Lowest { count: count as usize, ranked: BinaryHeap::new() })
            }
        }
    }

    /// Judge rows of one shard.
    fn judge(
        &self,
        reading: &Reading<'_>,
        table: &TableState,
        rule: EvictionRule,
        ids: &[u64],
        chosen: &mut Chosen,
    ) -> Result<(), StoreError> {
        let keys: Vec<Key> = self.keys(table, ids).iter().copied().collect();
        let mut misses = self.judge_resident(rule, &keys, chosen);
        let mut rounds = 0;
        while !misses.is_empty() {
            rounds += 1;
            self.check_rounds(rounds, misses[0])?;
            let cold = self.read_ahead(reading, &misses)?;
            let (mut moved, scratch) = (Vec::new(), &mut Vec::new());
            for (number, miss) in misses.iter().enumerate() {
                match cold.row(number) {
                    Some(row) => chosen.add(rank(&self.core.layout, rule, row, scratch), miss.key.id),
                    None => moved.push(miss.key),
                }
            }
            misses = self.judge_resident(rule, &moved, chosen);
        }
        Ok(())
    }

    /// Judge the rows of one shard that are in memory. Returns the cold rows that the rule may select.
    fn judge_resident(&self, rule: EvictionRule, keys: &[Key], chosen: &mut Chosen) -> Vec<Miss> {
        let Some(first) = keys.first() else { return Vec::new() };
        let state = self.shards[first.shard as usize].state.read();
        let (mut misses, mut scratch) = (Vec::new(), Vec::new());
        for key in keys {
            let Some(found) = state.find(key) else { continue };
            if state.outstanding(key.table, key.id, found.entry) > 0 {
                continue;
            }
            if let Some(row) = found.location.row() {
                misses.push(Miss { key: *key, row });
            } else if let Some(slot) = found.location.slot() {
                let floats = self.core.layout.stride / 4;
                // SAFETY: a slot holds a row of `stride` bytes, which the shard's lock keeps in place and
                // unwritten.
                let row = unsafe { std::slice::from_raw_parts(state.row(&self.core, slot), floats) };
                chosen.add(rank(&self.core.layout, rule, row, &mut scratch), key.id);
            }
        }
        misses
    }

    /// Delete rows, except rows whose clock was taken meanwhile. Returns the deleted ids.
    fn remove_unheld(&self, table: &TableState, ids: &[u64]) -> Result<Vec<u64>, StoreError> {
        let keys = self.keys(table, ids);
        let mut removed = Vec::with_capacity(ids.len());
        for (shard, cell) in self.shards.iter().enumerate() {
            let mut state = cell.state.write();
            for key in keys.of_shard(shard) {
                let held = |entry| state.outstanding(key.table, key.id, entry) > 0;
                if state.find(key).is_none_or(|found| held(found.entry)) {
                    continue;
                }
                state.delete(&self.core, key.table, key.id)?;
                removed.push(key.id);
            }
        }
        Ok(removed)
    }
}

/// The rank of a whole row under a rule: rows with lower ranks are evicted first.
fn rank(layout: &RowLayout, rule: EvictionRule, row: &[f32], scratch: &mut Vec<f32>) -> u64 {
    let stamp = || stamp_of(layout, row);
    match rule {
        EvictionRule::TtlSteps { .. }
        | EvictionRule::TtlSeconds { .. }
        | EvictionRule::LeastFrequent { .. } => stamp(),
        EvictionRule::LowestScore { .. } => rank_of_score(f32::from_bits(stamp() as u32)),
        EvictionRule::LowestNorm { .. } | EvictionRule::NormBelow { .. } => {
            // Weights are added in order, so the bits are equal on every machine. The bits of positive floats
            // order like the numbers, and NaN ranks last.
            // SAFETY: a row of this layout, borrowed.
            let weights = unsafe { floats_of(layout, row.as_ptr(), scratch) };
            let squares = weights.iter().map(|&weight| f64::from(weight) * f64::from(weight));
            squares.sum::<f64>().abs().to_bits()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_go_and_of_equals_the_smaller_ids() {
        let mut chosen = Chosen::Lowest { count: 3, ranked: BinaryHeap::new() };
        for (rank, id) in [(5, 1), (2, 9), (2, 3), (2, 7), (8, 0), (1, u64::MAX)] {
            chosen.add(rank, id);
        }
        let mut ids = chosen.into_ids();
        ids.sort_unstable();
        assert_eq!(ids, [3, 7, u64::MAX]);
    }
}
