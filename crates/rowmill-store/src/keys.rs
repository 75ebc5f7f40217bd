//! The rows of one operation, split by shard.

use rowmill_rows::IdRange;

use crate::index::{dense_shard_of, shard_of};

/// Rows of a group, by position; and for every shard the positions that belong to it, ascending.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// Table within the group, by position.
    pub(crate) tables: Vec<u32>,
    /// Id, by position.
    pub(crate) ids: Vec<u64>,
    order: Vec<u32>,
    bounds: Vec<u32>,
}

impl Keys {
    /// The rows of one table.
    pub(crate) fn of_table(table: u32, ids: &[u64], range: IdRange, shards: usize) -> Self {
        let mut keys = Self { tables: vec![table; ids.len()], ids: ids.to_vec(), ..Self::default() };
        keys.split(shards, |_| range);
        keys
    }

    /// Assign every position to its shard (counting sort, so positions stay ascending).
    pub(crate) fn split(&mut self, shards: usize, range: impl Fn(u32) -> IdRange) {
        let mut homes = Vec::with_capacity(self.ids.len());
        let mut bounds = vec![0_u32; shards + 1];
        let mut known = (u32::MAX, IdRange::Sparse);
        for (&table, &id) in self.tables.iter().zip(&self.ids) {
            if known.0 != table {
                known = (table, range(table));
            }
            let home = home(known.1, id, shards);
            homes.push(home as u16);
            bounds[home + 1] += 1;
        }
        for shard in 0..shards {
            bounds[shard + 1] += bounds[shard];
        }
        let mut next = bounds.clone();
        let mut order = vec![0_u32; homes.len()];
        for (position, &home) in homes.iter().enumerate() {
            let place = &mut next[home as usize];
            order[*place as usize] = position as u32;
            *place += 1;
        }
        self.order = order;
        self.bounds = bounds;
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Positions that belong to `shard`.
    #[inline]
    pub(crate) fn of_shard(&self, shard: usize) -> &[u32] {
        &self.order[self.bounds[shard] as usize..self.bounds[shard + 1] as usize]
    }

    /// Table and id at a position.
    #[inline]
    pub(crate) fn at(&self, position: u32) -> (u32, u64) {
        (self.tables[position as usize], self.ids[position as usize])
    }
}

/// The shard of an id.
#[inline]
pub(crate) fn home(range: IdRange, id: u64, shards: usize) -> usize {
    match range {
        IdRange::Sparse => shard_of(id, shards),
        IdRange::Dense { .. } => dense_shard_of(id, shards),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_goes_to_one_shard_in_order() {
        let ids: Vec<u64> = (0..1000).map(|i| i * 7919).collect();
        let keys = Keys::of_table(0, &ids, IdRange::Sparse, 8);
        let mut seen = vec![false; ids.len()];
        for shard in 0..8 {
            assert!(keys.of_shard(shard).is_sorted());
            for &position in keys.of_shard(shard) {
                assert_eq!(shard_of(ids[position as usize], 8), shard);
                assert!(!std::mem::replace(&mut seen[position as usize], true));
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}
