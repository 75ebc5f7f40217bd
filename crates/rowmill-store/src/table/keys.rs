//! Keys: the rows of one operation, grouped by shard.

use std::mem::MaybeUninit;

use rowmill_index::{dense_shard_of, shard_and_hash_of, shard_of};
use rowmill_rows::IdRange;

use crate::threads::{Scatter, Workers};

/// A row that an operation asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) id: u64,
    /// [`hash`](rowmill_index::hash) of the id; 0 in a dense table.
    pub(crate) hash: u32,
    /// Table within the group.
    pub(crate) table: u32,
    /// Position of the row in the caller's list.
    pub(crate) position: u32,
    /// The shard of the row.
    pub(crate) shard: u32,
}

impl Key {
    /// The key of an id in a table with this id range.
    #[inline]
    pub(crate) fn new(table: u32, range: IdRange, id: u64, position: u32, shards: usize) -> Self {
        let (shard, hash) = match range {
            IdRange::Sparse => shard_and_hash_of(id, shards),
            IdRange::Dense { .. } => (dense_shard_of(id, shards) as u32, 0),
        };
        Self { id, hash, table, position, shard }
    }
}

/// Write the keys of ids of one table, with positions from `first` on.
pub(crate) fn write_keys(keys: &mut [Key], ids: TableIds<'_>, first: usize, shards: usize) {
    let TableIds { table, range, ids } = ids;
    let numbered = (first as u32..).zip(keys.iter_mut().zip(ids));
    match range {
        IdRange::Sparse => numbered.for_each(|(position, (key, &id))| {
            let (shard, hash) = shard_and_hash_of(id, shards);
            *key = Key { id, hash, table, position, shard };
        }),
        IdRange::Dense { .. } => numbered.for_each(|(position, (key, &id))| {
            *key = Key { id, hash: 0, table, position, shard: dense_shard_of(id, shards) as u32 };
        }),
    }
}

/// The ids that an operation asks for in one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableIds<'a> {
    /// Table within the group.
    pub(crate) table: u32,
    pub(crate) range: IdRange,
    pub(crate) ids: &'a [u64],
}

/// Number of ids that one thread sorts by shard at a time.
const CHUNK_IDS: usize = 8192;

/// Some ids of one table, while they are sorted by shard.
struct IdChunk<'a> {
    ids: TableIds<'a>,
    /// Position of the first id.
    first: usize,
    /// Shard and hash of every id.
    homes: Vec<(u32, u32)>,
    /// Per shard: first the number of rows, then the index for the next row.
    places: Vec<u32>,
}

impl IdChunk<'_> {
    fn count(&mut self, shards: usize) {
        let ids = self.ids.ids.iter();
        self.homes = match self.ids.range {
            IdRange::Sparse => ids.map(|&id| shard_and_hash_of(id, shards)).collect(),
            IdRange::Dense { .. } => ids.map(|&id| (dense_shard_of(id, shards) as u32, 0)).collect(),
        };
        self.places = vec![0; shards];
        for &(home, _) in &self.homes {
            self.places[home as usize] += 1;
        }
    }

    /// # Safety
    /// The places must lie inside `out` and belong to this chunk alone.
    unsafe fn write(&mut self, out: &Scatter<'_, MaybeUninit<Key>>) {
        let table = self.ids.table;
        for (position, (&id, &(shard, hash))) in
            (self.first as u32..).zip(self.ids.ids.iter().zip(&self.homes))
        {
            let place = &mut self.places[shard as usize];
            // SAFETY: by the contract of this function.
            unsafe { out.set(*place as usize, MaybeUninit::new(Key { id, hash, table, position, shard })) };
            *place += 1;
        }
    }
}

/// Rows of a group: the keys of each shard are contiguous and ordered by position.
#[derive(Debug)]
pub(crate) struct Keys {
    sorted: Vec<Key>,
    bounds: Vec<u32>,
    /// The last position plus one.
    positions: usize,
}

impl Keys {
    /// The rows of several tables. Positions count from `first` on, table by table. Several threads do the
    /// work if there are `workers`.
    pub(crate) fn new(
        tables: &[TableIds<'_>],
        first: usize,
        shards: usize,
        workers: Option<&Workers>,
    ) -> Self {
        // A counting sort keeps positions ascending within a shard. Ids are counted per chunk and shard, each
        // chunk gets its own range in every shard, and then writes its keys there.
        let mut len = 0;
        let mut chunks = Vec::new();
        for table in tables {
            for ids in table.ids.chunks(CHUNK_IDS) {
                let ids = TableIds { ids, ..*table };
                chunks.push(IdChunk { ids, first: first + len, homes: Vec::new(), places: Vec::new() });
                len += ids.ids.len();
            }
        }
        assert!(u32::try_from(first + len).is_ok(), "positions of {len} ids from {first} on exceed 32 bits");
        match workers {
            Some(workers) => workers.for_each_mut(len, &mut chunks, |chunk| chunk.count(shards)),
            None => chunks.iter_mut().for_each(|chunk| chunk.count(shards)),
        }
        let mut bounds = vec![0];
        let mut place = 0;
        for shard in 0..shards {
            for chunk in &mut chunks {
                let rows = std::mem::replace(&mut chunk.places[shard], place);
                place += rows;
            }
            bounds.push(place);
        }
        let mut sorted = Vec::with_capacity(len);
        let out = Scatter::new(sorted.spare_capacity_mut());
        // SAFETY: places are below the number of rows, and no two rows have the same place.
        let write = |chunk: &mut IdChunk<'_>| unsafe { chunk.write(&out) };
        match workers {
            Some(workers) => workers.for_each_mut(len, &mut chunks, write),
            None => chunks.iter_mut().for_each(write),
        }
        // SAFETY: all `len` places were written.
        unsafe { sorted.set_len(len) };
        Self { sorted, bounds, positions: first + len }
    }

    /// These rows without the marked ones. The other rows keep their positions.
    pub(crate) fn without(&self, marked: &[bool]) -> Self {
        let kept = |key: &&Key| !marked[key.position as usize];
        let mut bounds = vec![0];
        let mut sorted = Vec::with_capacity(self.sorted.len());
        for shard in 0..self.bounds.len() - 1 {
            sorted.extend(self.of_shard(shard).iter().filter(kept));
            bounds.push(sorted.len() as u32);
        }
        Self { sorted, bounds, positions: self.positions }
    }

    /// Number of positions in the caller's list: the number of rows, plus the rows that `without` removed.
    pub(crate) fn positions(&self) -> usize {
        self.positions
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The rows of `shard`.
    #[inline]
    pub(crate) fn of_shard(&self, shard: usize) -> &[Key] {
        &self.sorted[self.bounds[shard] as usize..self.bounds[shard + 1] as usize]
    }

    /// All rows, ordered by shard.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.sorted.iter()
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
    fn every_row_goes_to_its_shard_in_order() {
        let ids: Vec<u64> = (0..1000).map(|i| i * 7919).collect();
        let (first, second) = ids.split_at(300);
        let dense = IdRange::Dense { rows: 1 << 40 };
        let tables = [
            TableIds { table: 4, range: IdRange::Sparse, ids: first },
            TableIds { table: 2, range: dense, ids: second },
        ];
        let keys = Keys::new(&tables, 10, 8, None);
        let mut seen = vec![false; ids.len()];
        for shard in 0..8 {
            assert!(keys.of_shard(shard).is_sorted_by_key(|key| key.position));
            for key in keys.of_shard(shard) {
                let (table, range) = if key.position < 310 { (4, IdRange::Sparse) } else { (2, dense) };
                let position = key.position as usize - 10;
                assert_eq!((key.id, key.table), (ids[position], table));
                assert_eq!(home(range, key.id, 8), shard);
                assert_eq!(*key, Key::new(table, range, key.id, key.position, 8));
                assert!(!std::mem::replace(&mut seen[position], true));
            }
        }
        assert!(seen.into_iter().all(|seen| seen));

        let marked: Vec<bool> = (0..1010).map(|position| position % 3 == 0).collect();
        let kept = keys.without(&marked);
        assert_eq!((keys.len(), kept.len(), kept.positions()), (1000, 667, 1010));
        for shard in 0..8 {
            let left: Vec<&Key> = keys.of_shard(shard).iter().filter(|key| key.position % 3 != 0).collect();
            assert!(kept.of_shard(shard).iter().eq(left));
        }
    }
}
