//! Ids that were asked for too rarely to get a row.
//!
//! A training read counts each of its distinct ids once. Those without a row that it leaves below their table's
//! count are *refused*: they are taken out of the lookup's keys before any shard is entered, so no row is born,
//! no clock taken and no gradient applied; they read as they would be born.

use rowmill_rows::Admission;

use crate::group::Group;
use crate::lookup::Lookup;
use crate::table::Key;

/// Whether an operation is a training read, or changes what one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It counts.
    Read,
    /// It does not.
    Change,
}

impl Group {
    /// Take the keys of refused ids out of a lookup.
    pub(crate) fn refuse(&self, lookup: &mut Lookup, asked: Asked) {
        if lookup.tables.iter().all(|rows| rows.table.spec.admission.is_none()) {
            return;
        }
        let mut below = vec![false; lookup.keys().positions()];
        for rows in &lookup.tables {
            let (Some(Admission { min_count, .. }), Some(sketch)) =
                (rows.table.spec.admission, &rows.table.sketch)
            else {
                continue;
            };
            let mut sketch = sketch.lock();
            for (below, &id) in below[rows.base..].iter_mut().zip(&*rows.unique) {
                let counted = match asked {
                    Asked::Read => sketch.count(id, min_count),
                    Asked::Change => sketch.counted(id),
                };
                *below = counted < min_count;
            }
        }
        let mut refused = Vec::new();
        for (shard, cell) in self.shards.iter().enumerate() {
            let keys = lookup.keys().of_shard(shard);
            if keys.iter().any(|key| below[key.position as usize]) {
                let state = cell.state.read();
                let is_refused = |key: &&Key| below[key.position as usize] && state.find(key).is_none();
                refused.extend(keys.iter().filter(is_refused).copied());
            }
        }
        if !refused.is_empty() {
            let mut marks = vec![false; lookup.keys().positions()];
            for key in &refused {
                marks[key.position as usize] = true;
            }
            lookup.keys = lookup.keys().without(&marks).into();
        }
        lookup.refused = refused;
    }
}
