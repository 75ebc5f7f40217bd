//! Checks memory for the indexes of tables that are created or opened.

use rowmill_rows::IdRange;

use super::store::{Store, TAIL_BUFFERS, segment_bytes};
use crate::error::StoreError;
use crate::group::{Group, SHARDS_MAX};
use crate::memory::Purpose;
use crate::shard::{IndexSize, SLOTS_MIN};

/// A table whose index is about to be made.
#[derive(Clone, Copy)]
pub(crate) struct NewIndex<'a> {
    pub(crate) table: &'a str,
    pub(crate) ids: IdRange,
    /// Rows that are about to be loaded.
    pub(crate) rows: u64,
    pub(crate) group: &'a Group,
}

impl NewIndex<'_> {
    /// Bytes with room for the fullest shard. A direct index takes all its memory at once.
    fn roomy(&self) -> u64 {
        self.group.index_bytes_for(self.ids, self.rows)
    }

    fn least(&self) -> u64 {
        self.group.index_bytes_least(self.ids, self.rows)
    }
}

impl Store {
    /// Check that these indexes together fit into the memory, besides the minimum of rows. Returns how large
    /// they may become while rows are loaded.
    ///
    /// # Errors
    /// [`StoreError::MemoryTooSmall`]. It names the table with the largest direct index, if there is one.
    pub(crate) fn check_indexes(
        &self,
        indexes: &[NewIndex<'_>],
        purpose: Purpose,
    ) -> Result<IndexSize, StoreError> {
        let least: u64 = indexes.iter().map(NewIndex::least).sum();
        let groups = self.groups.read();
        let rows_min = groups.iter().map(|group| group.core.rows_min()).sum::<u64>();
        let roomy: u64 = indexes.iter().map(NewIndex::roomy).sum();
        if least == 0 || self.budget.allows(rows_min + roomy, Purpose::Grow) {
            return Ok(IndexSize::Roomy);
        }
        if self.budget.allows(rows_min + least, purpose) {
            return Ok(IndexSize::Exact);
        }
        // With more memory there are more shards and larger write buffers.
        let slots = (SHARDS_MAX * SLOTS_MIN) as u64;
        let rows_most: u64 = groups.iter().map(|group| slots * group.core.slot_bytes()).sum();
        let needed = self.budget.needed(rows_most + roomy);
        let buffers = (groups.len() * TAIL_BUFFERS * segment_bytes(needed)) as u64;
        let (option, given) = ("memory", self.budget.memory());
        let what = describe(indexes, roomy);
        Err(StoreError::MemoryTooSmall { option, given, needed: needed + buffers, what })
    }
}

/// What the memory is too small for.
fn describe(indexes: &[NewIndex<'_>], all: u64) -> String {
    let direct: Vec<(u64, &NewIndex<'_>, u64)> = indexes
        .iter()
        .filter_map(|index| match index.ids {
            IdRange::Dense { rows } => Some((index.roomy(), index, rows)),
            IdRange::Sparse => None,
        })
        .collect();
    let Some((bytes, index, rows)) = direct.iter().max_by_key(|(bytes, ..)| bytes) else {
        let rows: u64 = indexes.iter().map(|index| index.rows).sum();
        return format!("the index of {rows} rows ({all} bytes)");
    };
    let bytes_of_all: u64 = direct.iter().map(|(bytes, ..)| bytes).sum();
    let others = match direct.len() {
        1 => String::new(),
        tables => format!("; {bytes_of_all} bytes for all {tables} tables with dense ids"),
    };
    let table = index.table;
    format!("the direct index of table {table:?} ({bytes} bytes for ids in [0, {rows}){others})")
}
