//! Checks memory for direct indexes, which use all their memory as soon as their table is created or opened.

use rowmill_rows::IdRange;

use super::store::{Store, TAIL_BUFFERS, segment_bytes};
use crate::error::StoreError;
use crate::group::{Group, SHARDS_MAX};
use crate::memory::Purpose;
use crate::shard::SLOTS_MIN;

impl Store {
    /// Check that the direct indexes of these tables together fit into the memory, besides the minimum of
    /// rows. `hashed` bytes of other indexes, about to be loaded, count towards the memory needed.
    ///
    /// # Errors
    /// [`StoreError::MemoryTooSmall`], which names the table with the largest direct index.
    pub(crate) fn check_direct_indexes(
        &self,
        tables: &[(&str, IdRange, &Group)],
        hashed: u64,
        purpose: Purpose,
    ) -> Result<(), StoreError> {
        let direct = |&(name, ids, group): &(_, IdRange, &Group)| match ids {
            IdRange::Sparse => None,
            IdRange::Dense { rows } => Some((group.index_bytes_for(ids, rows), name, rows)),
        };
        let direct: Vec<(u64, &str, u64)> = tables.iter().filter_map(direct).collect();
        let Some((bytes, name, rows)) = direct.iter().max() else { return Ok(()) };
        let all: u64 = direct.iter().map(|(bytes, ..)| bytes).sum();
        let groups = self.groups.read();
        let rows_min = groups.iter().map(|group| group.core.rows_min()).sum::<u64>();
        if self.budget.allows(rows_min + all, purpose) {
            return Ok(());
        }
        // With more memory there are more shards and larger write buffers.
        let slots = (SHARDS_MAX * SLOTS_MIN) as u64;
        let rows_most: u64 = groups.iter().map(|group| slots * group.core.slot_bytes()).sum();
        let needed = self.budget.needed(rows_most + all + hashed);
        let buffers = (groups.len() * TAIL_BUFFERS * segment_bytes(needed)) as u64;
        let others = match direct.len() {
            1 => String::new(),
            tables => format!("; {all} bytes for all {tables} tables with dense ids"),
        };
        Err(StoreError::MemoryTooSmall {
            option: "memory",
            given: self.budget.memory(),
            needed: needed + buffers,
            what: format!(
                "the direct index of table {name:?} ({bytes} bytes for ids in [0, {rows}){others})"
            ),
        })
    }
}
