//! Where the rows of a table lie that are in memory, without keys and places: all that reading asks for where nobody
//! counts uses.

use rowmill_kernels::RowPtr;
use rowmill_rows::IdRange;

use crate::core::Core;
#[cfg(target_arch = "x86_64")]
use crate::index::Avx512;
use crate::index::{Compare, HashIndex, Location, Plain, TableIndex, dense_shard_of, shard_and_hash_of};
use crate::prefetch::{prefetch, prefetch_bytes};
use crate::table_state::TableState;
use crate::walk::{AllShards, CHUNK};

/// A row is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Absent;

/// The rows of a table of a group whose shards are held.
pub(crate) struct Residents<'a> {
    index: Index<'a>,
    /// By shard, the row of slot 0.
    first: Vec<*const f32>,
    stride: usize,
    /// Bytes of a row that are read.
    row_bytes: usize,
}

/// The table's index, by shard.
enum Index<'a> {
    Hash(Vec<&'a HashIndex>),
    /// Words as [`Location::slot_of_stored`] takes them, by position in the shard.
    Dense(Vec<&'a [u32]>),
}

impl<'a> Residents<'a> {
    /// The rows of a table, to read `row_bytes` of each; none if somebody wants to know which are used.
    pub(crate) fn new(
        core: &Core,
        all: &'a AllShards<'_>,
        table: &TableState,
        row_bytes: usize,
    ) -> Option<Self> {
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
            row_bytes,
        })
    }

    /// Write the addresses of the rows of `ids`, whose first bytes are then on their way into the caches.
    ///
    /// # Errors
    /// [`Absent`] if a row is not in memory, or not of the table's range.
    pub(crate) fn find(&self, ids: &[u64], rows: &mut [RowPtr]) -> Result<(), Absent> {
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

    fn find_dense(&self, locations: &[&[u32]], ids: &[u64], rows: &mut [RowPtr]) -> Result<(), Absent> {
        let bits = locations.len().ilog2();
        let place = |id: u64| (dense_shard_of(id, locations.len()), (id >> bits) as usize);
        for (ids, rows) in ids.chunks(CHUNK).zip(rows.chunks_mut(CHUNK)) {
            for &id in ids {
                let (shard, position) = place(id);
                prefetch(locations[shard].as_ptr().wrapping_add(position));
            }
            for (&id, row) in ids.iter().zip(rows) {
                let (shard, position) = place(id);
                let word = locations[shard].get(position).copied().unwrap_or_default();
                *row = self.row(shard, Location::slot_of_stored(word).ok_or(Absent)?);
            }
        }
        Ok(())
    }

    /// # Safety
    /// The CPU has AVX-512F and BMI1.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,bmi1")]
    unsafe fn find_avx512(
        &self,
        indexes: &[&HashIndex],
        ids: &[u64],
        rows: &mut [RowPtr],
    ) -> Result<(), Absent> {
        // SAFETY: the caller's.
        unsafe { self.find_hashed::<Avx512>(indexes, ids, rows) }
    }

    /// # Safety
    /// The CPU has the instructions of `C`.
    #[inline(always)]
    unsafe fn find_hashed<C: Compare>(
        &self,
        indexes: &[&HashIndex],
        ids: &[u64],
        rows: &mut [RowPtr],
    ) -> Result<(), Absent> {
        let mut homes = [(0_u32, 0_u32); CHUNK];
        let mut beyond = [0_u8; CHUNK];
        for (ids, rows) in ids.chunks(CHUNK).zip(rows.chunks_mut(CHUNK)) {
            for (&id, home) in ids.iter().zip(&mut homes) {
                *home = shard_and_hash_of(id, indexes.len());
                indexes[home.0 as usize].prefetch(home.1);
            }
            let mut count = 0;
            for (number, (&id, &(shard, hash))) in ids.iter().zip(&homes).enumerate() {
                // SAFETY: the caller's.
                if let Ok(found) = unsafe { indexes[shard as usize].find_near::<C>(id, hash) } {
                    let slot = found.and_then(|found| found.location.slot()).ok_or(Absent)?;
                    rows[number] = self.row(shard as usize, slot);
                } else {
                    beyond[count] = number as u8;
                    count += 1;
                }
            }
            for &number in &beyond[..count] {
                let (shard, hash) = homes[number as usize];
                // SAFETY: the caller's.
                let found = unsafe { indexes[shard as usize].find_beyond::<C>(ids[number as usize], hash) };
                let slot = found.and_then(|found| found.location.slot()).ok_or(Absent)?;
                rows[number as usize] = self.row(shard as usize, slot);
            }
        }
        Ok(())
    }

    /// The row in a slot, asked for.
    #[inline(always)]
    fn row(&self, shard: usize, slot: u32) -> RowPtr {
        let row = self.first[shard].wrapping_byte_add(slot as usize * self.stride);
        prefetch_bytes(row, self.row_bytes);
        row
    }
}
