//! Admission: refuses to create rows for ids that are requested too rarely.
//!
//! A training read counts each of its distinct ids once. An id without a row whose count stays below its
//! table's minimum is *refused*. It is removed from the lookup's keys before any shard is entered: no row is
//! created, no clock is taken and no gradient is applied. A refused id reads as its initial values.

use rowmill_rows::Admission;

use crate::group::Group;
use crate::table::{Key, Keys, TableState};

/// Whether an operation is a training read, or a change of rows that a training read returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A training read: counts ids.
    Read,
    /// A change: does not count ids.
    Change,
}

/// The distinct ids of one table in an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DistinctIds<'a> {
    pub(crate) table: &'a TableState,
    pub(crate) ids: &'a [u64],
    /// Position of the first id among all keys.
    pub(crate) first: usize,
}

impl Group {
    /// The keys of refused ids among `keys`, the distinct rows of some tables.
    pub(crate) fn refused(&self, keys: &Keys, tables: &[DistinctIds<'_>], asked: Asked) -> Vec<Key> {
        let mut below = vec![false; keys.positions()];
        for &DistinctIds { table, ids, first } in tables {
            let (Some(Admission { min_count, .. }), Some(sketch)) = (table.spec.admission, &table.sketch)
            else {
                continue;
            };
            let mut sketch = sketch.lock();
            for (below, &id) in below[first..].iter_mut().zip(ids) {
                let counted = match asked {
                    Asked::Read => sketch.count(id, min_count),
                    Asked::Change => sketch.counted(id),
                };
                *below = counted < min_count;
            }
        }
        let mut refused = Vec::new();
        for (shard, cell) in self.shards.iter().enumerate() {
            let keys = keys.of_shard(shard);
            if keys.iter().any(|key| below[key.position as usize]) {
                let state = cell.state.read();
                let is_refused = |key: &&Key| below[key.position as usize] && state.find(key).is_none();
                refused.extend(keys.iter().filter(is_refused).copied());
            }
        }
        refused
    }
}
