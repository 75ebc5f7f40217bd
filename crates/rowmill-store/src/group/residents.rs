//! Finds the addresses of resident rows without keys and entries: all that a read needs when shards do not
//! count uses.

use rowmill_index::{
    Compare, HashIndex, Location, Plain, TableIndex, dense_shard_of, prefetch, shard_and_hash_of,
};
use rowmill_kernels::RowPtr;
use rowmill_rows::IdRange;

use super::walk::AllShards;
use crate::shard::{Core, Shard};
use crate::table::TableState;
#[cfg(target_arch = "x86_64")]
use rowmill_index::Avx512;

/// A row is on the device only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Absent;

/// For a dense table whose rows are all in memory in the order of their ids: the first row of each shard.
/// `None` otherwise, or if a shard counts uses.
pub(crate) fn rows_in_order(core: &Core, all: &AllShards<'_>, table: &TableState) -> Option<Vec<RowPtr>> {
    let first = |shard: &Shard| {
        let slot = shard.index(table.local).array().filter(|_| !shard.counts_uses())?;
        Some(shard.row(core, slot).cast_const())
    };
    all.iter().map(|shard| first(shard)).collect()
}

/// How many lookups ahead the index is prefetched.
const AHEAD: usize = 32;

/// Locates the rows of a table while the shards of its group are locked for reading.
pub(crate) struct Residents<'a> {
    index: Index<'a>,
    /// The row in slot 0 of each shard.
    first: Vec<*const f32>,
    stride: usize,
}

/// The table's index, by shard.
enum Index<'a> {
    Hash(Vec<&'a HashIndex>),
    /// Words for [`Location::of_stored`], by position in the shard.
    Dense(Vec<&'a [u32]>),
}

impl<'a> Residents<'a> {
    /// For the rows of a table. `None` if a shard counts uses.
    pub(crate) fn new(core: &Core, all: &'a AllShards<'_>, table: &TableState) -> Option<Self> {
        if all.iter().any(|shard| shard.counts_uses()) {
            return None;
        }
        let indexes = all.iter().map(|shard| shard.index(table.local));
        let index = match table.spec.ids {
            IdRange::Sparse => Index::Hash(indexes.filter_map(TableIndex::as_hash).collect()),
            IdRange::Dense { .. } => Index::Dense(indexes.filter_map(TableIndex::dense_locations).collect()),
        };
        Some(Self {
            index,
            first: all.iter().map(|shard| shard.row(core, 0).cast_const()).collect(),
            stride: core.layout.stride,
        })
    }

    /// Write the addresses of the rows of `ids`: null where an id has no row, or is outside the table's range. Returns the
    /// number of these.
    ///
    /// # Errors
    /// [`Absent`] if a row is not in memory.
    pub(crate) fn find(&self, ids: &[u64], rows: &mut [RowPtr]) -> Result<usize, Absent> {
        debug_assert_eq!(ids.len(), rows.len());
        match &self.index {
            Index::Dense(locations) => self.find_dense(locations, ids, rows),
            Index::Hash(indexes) => {
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("bmi1") {
                    // SAFETY: the CPU has these instructions.
                    return unsafe { self.find_avx512(indexes, ids, rows) };
                }
                // SAFETY: every CPU has the instructions of `Plain`.
                unsafe { self.find_hashed::<Plain>(indexes, ids, rows) }
            }
        }
    }

    fn find_dense(&self, locations: &[&[u32]], ids: &[u64], rows: &mut [RowPtr]) -> Result<usize, Absent> {
        let bits = locations.len().ilog2();
        let position_of = |id: u64| (dense_shard_of(id, locations.len()), (id >> bits) as usize);
        let prefetch_of = |id: u64| {
            let (shard, position) = position_of(id);
            prefetch(locations[shard].as_ptr().wrapping_add(position));
        };
        ids.iter().take(AHEAD).for_each(|&id| prefetch_of(id));
        let mut missing = 0;
        for (number, (&id, row)) in ids.iter().zip(rows).enumerate() {
            if let Some(&later) = ids.get(number + AHEAD) {
                prefetch_of(later);
            }
            let (shard, position) = position_of(id);
            let word = locations[shard].get(position).copied().unwrap_or_default();
            *row = self.row_of(shard, Location::of_stored(word), &mut missing)?;
        }
        Ok(missing)
    }

    /// # Safety
    /// The CPU must have AVX-512F and BMI1.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,bmi1")]
    unsafe fn find_avx512(
        &self,
        indexes: &[&HashIndex],
        ids: &[u64],
        rows: &mut [RowPtr],
    ) -> Result<usize, Absent> {
        // SAFETY: by the contract of this function.
        unsafe { self.find_hashed::<Avx512>(indexes, ids, rows) }
    }

    /// # Safety
    /// The CPU must have the instructions of `C`.
    #[inline(always)]
    unsafe fn find_hashed<C: Compare>(
        &self,
        indexes: &[&HashIndex],
        ids: &[u64],
        rows: &mut [RowPtr],
    ) -> Result<usize, Absent> {
        let home_of = |id: u64| {
            let home = shard_and_hash_of(id, indexes.len());
            indexes[home.0 as usize].prefetch(home.1);
            home
        };
        let mut homes = [(0_u32, 0_u32); AHEAD];
        for (&id, home) in ids.iter().zip(&mut homes) {
            *home = home_of(id);
        }
        let (mut beyond, mut missing) = (Vec::new(), 0);
        for (number, (&id, row)) in ids.iter().zip(&mut *rows).enumerate() {
            let home = &mut homes[number % AHEAD];
            let (shard, hash) = *home;
            if let Some(&later) = ids.get(number + AHEAD) {
                *home = home_of(later);
            }
            // SAFETY: by the contract of this function.
            if let Ok(found) = unsafe { indexes[shard as usize].find_near::<C>(id, hash) } {
                *row = self.row_of(shard as usize, found.map(|found| found.location), &mut missing)?;
            } else {
                beyond.push((number, shard, hash));
            }
        }
        for (number, shard, hash) in beyond {
            // SAFETY: by the contract of this function.
            let found = unsafe { indexes[shard as usize].find_beyond::<C>(ids[number], hash) };
            let location = found.map(|found| found.location);
            rows[number] = self.row_of(shard as usize, location, &mut missing)?;
        }
        Ok(missing)
    }

    /// The row at a location; null, and counted as `missing`, where an id has none. It is not prefetched: kernels prefetch the
    /// rows that they read. Prefetching them here as well made lookups of 64 weights and more slower, and those of 16 no
    /// faster.
    #[inline(always)]
    fn row_of(
        &self,
        shard: usize,
        location: Option<Location>,
        missing: &mut usize,
    ) -> Result<RowPtr, Absent> {
        let Some(location) = location else {
            *missing += 1;
            return Ok(std::ptr::null());
        };
        let slot = location.slot().ok_or(Absent)?;
        Ok(self.first[shard].wrapping_byte_add(slot as usize * self.stride))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rowmill_io::MemoryVolume;
    use rowmill_rows::{Dtype, IdBag, Initializer, OptimizerSpec, Pooling, StalenessBound};

    use super::*;
    use crate::{Store, StoreError, StoreOptions, Table, TableSpec};

    const DIM: usize = 5;
    const ROWS: u64 = 3000;

    fn open() -> (Arc<Store>, [Table; 2]) {
        let options = StoreOptions { memory: 64 << 20, threads: 2, ..StoreOptions::default() };
        let store = Store::open_volume(Arc::new(MemoryVolume::new()), options).unwrap();
        let spec = TableSpec {
            dim: DIM as u32,
            dtype: Dtype::F32,
            optimizer: OptimizerSpec::Sgd { lr: 0.5 },
            initializer: Initializer::Uniform { low: -0.5, high: 0.5 },
            staleness: StalenessBound::Infinite,
            ids: IdRange::Dense { rows: ROWS },
            eviction: None,
            admission: None,
        };
        let tables = ["a", "b"].map(|name| store.table(name, &spec).unwrap());
        (store, tables)
    }

    fn put(table: &Table, ids: impl Iterator<Item = u64>) {
        let ids: Vec<u64> = ids.collect();
        let weights: Vec<f32> = (0..ids.len() * DIM).map(|i| (i % 997) as f32 / 7.0).collect();
        table.put(&ids, &weights, None).unwrap();
    }

    fn in_order(table: &Table) -> bool {
        let group = table.group();
        rows_in_order(&group.core, &group.read_all().unwrap(), table.state()).is_some()
    }

    /// Evaluation gives the same result as the training lookup, which deduplicates ids.
    fn compare(store: &Store, tables: &[Table; 2]) {
        let ids: Vec<u64> = (0..5000).map(|i| i * 7919 % ROWS).collect();
        let offsets: Vec<i64> = (0..=500).map(|bag| bag * 10).collect();
        for padding in [None, Some(7), Some(u64::MAX)] {
            for pooling in [Pooling::Sum, Pooling::Mean] {
                let bag = IdBag { ids: &ids, offsets: &offsets, weights: None, padding, pooling };
                let bags = [(&tables[0], bag), (&tables[1], bag)];
                let stride = 2 * DIM + 1;
                let (mut evaluated, mut looked_up) =
                    (vec![0.0_f32; 500 * stride], vec![0.0_f32; 500 * stride]);
                store.evaluate(&bags, &mut evaluated, stride, None).unwrap();
                store.lookup(&bags, &mut looked_up, stride, None).unwrap();
                assert_eq!(evaluated, looked_up, "{padding:?} {pooling:?}");
            }
        }
    }

    #[test]
    fn a_table_whose_rows_lie_in_order_is_read_as_an_array_until_one_leaves() {
        let (store, tables) = open();
        for table in &tables {
            compare(&store, &tables);
            put(table, 0..ROWS - 1);
            assert!(!in_order(table), "the last row does not exist yet");
            compare(&store, &tables);
            put(table, ROWS - 1..ROWS);
            assert!(in_order(table));
            compare(&store, &tables);
        }
        // A change in place moves no row.
        put(&tables[0], 100..200);
        assert!(in_order(&tables[0]));
        compare(&store, &tables);
        // A deleted row reads as its initial values.
        tables[0].delete(&[1234]).unwrap();
        assert!(!in_order(&tables[0]) && in_order(&tables[1]));
        compare(&store, &tables);
        put(&tables[0], 1234..1235);
        compare(&store, &tables);
        // Rows that have left memory are read from the device.
        let group = tables[1].group();
        group.shards[0].state.write().shrink(&group.core, 8).unwrap();
        assert!(!in_order(&tables[1]));
        compare(&store, &tables);
    }

    #[test]
    fn rows_born_in_another_order_are_no_array() {
        let (store, tables) = open();
        put(&tables[0], (0..ROWS).rev());
        assert!(!in_order(&tables[0]));
        compare(&store, &tables);
    }

    #[test]
    fn ids_beyond_an_array_are_refused() {
        let (store, tables) = open();
        put(&tables[0], 0..ROWS);
        assert!(in_order(&tables[0]));
        for id in [ROWS, u64::MAX] {
            let ids = [3, id];
            let bag =
                IdBag { ids: &ids, offsets: &[0, 2], weights: None, padding: None, pooling: Pooling::Sum };
            let evaluated = store.evaluate(&[(&tables[0], bag)], &mut [0.0_f32; DIM], DIM, None);
            assert!(matches!(evaluated, Err(StoreError::IdRange { .. })), "{evaluated:?}");
        }
    }
}
