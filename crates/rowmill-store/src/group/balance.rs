//! Balances the memory for rows between groups.
//!
//! Groups take memory as they need it, so a group that grew early may hold memory that another needs. Once
//! memory is used up, groups that spill rows with less than an equal share get memory from groups with more.
//! When the index grows, rows leave memory to make room for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::group::Group;
use crate::error::StoreError;
use crate::memory::Budget;

/// Memory counts as used up from this fraction of the limit on.
const FULL: f64 = 0.97;
/// A group gives at most 1/8 of its memory at a time.
const GIVE_SHARE: u64 = 8;

impl Group {
    /// Spill rows until they fit the budget again, after the index has grown. When the log is short of row
    /// places, changed rows stay in memory until a checkpoint has saved them.
    ///
    /// # Errors
    /// When a row cannot be written to the log.
    pub(crate) fn shrink_if_over(&self) -> Result<(), StoreError> {
        let over = self.core.budget.rows_over();
        if over == 0 {
            return Ok(());
        }
        match self.shrink_by(over.min(self.core.used_bytes())) {
            Err(StoreError::NoPlaces { .. }) => Ok(()),
            shrunk => shrunk,
        }
    }

    /// Give up `bytes` of row memory, evenly over the shards.
    fn shrink_by(&self, bytes: u64) -> Result<(), StoreError> {
        let slots = bytes.div_ceil(self.core.slot_bytes()).div_ceil(self.shards.len() as u64) as usize;
        for cell in &self.shards {
            let mut state = cell.state.write();
            let keep = state.slots().saturating_sub(slots);
            state.shrink(&self.core, keep)?;
        }
        Ok(())
    }

    /// Number of spills since the last call.
    fn recent_spills(&self) -> u64 {
        let spills = self.shards.iter().map(|cell| cell.state.read().spills).sum();
        spills - self.core.spills_seen.swap(spills, Relaxed)
    }
}

/// Spill rows of all groups until they fit the budget, after something other than rows has taken memory.
///
/// # Errors
/// When a row cannot be written to the log.
pub(crate) fn shrink_all_if_over(groups: &[Arc<Group>], budget: &Budget) -> Result<(), StoreError> {
    let over = budget.rows_over();
    let used: u64 = groups.iter().map(|group| group.core.used_bytes()).sum();
    if over == 0 || used == 0 {
        return Ok(());
    }
    for group in groups {
        let share = u128::from(over.min(used)) * u128::from(group.core.used_bytes()) / u128::from(used);
        group.shrink_by(share as u64 + 1)?;
    }
    Ok(())
}

/// Move memory from groups with more than an equal share to groups that spill with less. The cleaning thread
/// calls this from time to time.
///
/// # Errors
/// When a row cannot be written to the log.
pub(crate) fn balance(groups: &[Arc<Group>], budget: &Budget) -> Result<(), StoreError> {
    for group in groups {
        group.core.charge_log();
    }
    if groups.len() < 2 {
        return Ok(());
    }
    // Working memory claimed by calls of one group may exceed the budget together with rows of another.
    shrink_all_if_over(groups, budget)?;
    let limit = budget.row_limit();
    if (budget.row_bytes() as f64) < limit as f64 * FULL {
        for group in groups {
            group.core.cap_bytes.store(u64::MAX, Relaxed);
        }
        return Ok(());
    }
    let share = limit / groups.len() as u64;
    let lacking: u64 = groups
        .iter()
        .filter(|group| group.recent_spills() > 0)
        .map(|group| share.saturating_sub(group.core.used_bytes()))
        .sum();
    let excess = |group: &Group| group.core.used_bytes().saturating_sub(share);
    let available: u64 = groups.iter().map(|group| excess(group)).sum();
    if lacking == 0 || available == 0 {
        return Ok(());
    }
    for group in groups.iter().filter(|group| excess(group) > 0) {
        let fair =
            (u128::from(lacking.min(available)) * u128::from(excess(group)) / u128::from(available)) as u64;
        let give = fair.min(group.core.used_bytes() / GIVE_SHARE);
        group.core.cap_bytes.store(group.core.used_bytes() - give, Relaxed);
        group.shrink_by(give)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rowmill_io::MemoryVolume;
    use rowmill_rows::{Dtype, IdRange, Initializer, OptimizerSpec, StalenessBound};

    use super::*;
    use crate::{Background, Store, StoreOptions, TableSpec};

    #[test]
    fn a_shard_that_gave_its_slots_up_gets_them_back() {
        let background = Background::Turns { incarnation: 1 };
        let options = StoreOptions { memory: 32 << 20, threads: 1, background, ..StoreOptions::default() };
        let store = Store::open_volume(Arc::new(MemoryVolume::new()), options).unwrap();
        let spec = TableSpec {
            dim: 256,
            dtype: Dtype::F32,
            optimizer: OptimizerSpec::Sgd { lr: 0.5 },
            initializer: Initializer::Zeros,
            staleness: StalenessBound::Infinite,
            ids: IdRange::Sparse,
            eviction: None,
            admission: None,
        };
        let table = store.table("t", &spec).unwrap();
        let weights = vec![0.5; 1024 * 256];
        let put_all = || {
            for first in (0..60_000).step_by(1024) {
                let ids: Vec<u64> = (first..first + 1024).collect();
                table.put(&ids, &weights, None).unwrap();
            }
        };
        put_all();
        let group = table.group();
        let slots = || -> Vec<usize> { group.shards.iter().map(|cell| cell.state.read().slots()).collect() };
        let fair = slots().iter().sum::<usize>() / slots().len();
        assert!(fair > 100 && slots().len() > 1, "{:?}", slots());
        for _ in 0..3 {
            group.shards[0].state.write().shrink(&group.core, 8).unwrap();
            put_all();
            assert!(slots()[0] > fair * 3 / 4, "{:?}", slots());
        }
    }
}
