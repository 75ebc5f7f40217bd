//! Where the rows of a dense table lie that are in memory, without keys and places: all that pooling without a
//! backward asks for.

use rowmill_kernels::RowPtr;

use crate::core::Core;
use crate::index::{Location, dense_shard_of};
use crate::prefetch::{prefetch, prefetch_bytes};
use crate::walk::AllShards;

/// Ids whose locations are asked for together.
const CHUNK: usize = 128;

/// A row is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Absent;

/// A dense table of a group whose shards are held.
pub(crate) struct DenseRows<'a> {
    shards: Vec<ShardRows<'a>>,
    shard_bits: u32,
    stride: usize,
    /// Bytes of the weights.
    row_bytes: usize,
}

struct ShardRows<'a> {
    /// As [`Location::slot_of_stored`] takes them, by position in the shard.
    locations: &'a [u32],
    /// The row of slot 0.
    first: *const f32,
}

impl<'a> DenseRows<'a> {
    /// The rows of a table whose ids are a dense range.
    ///
    /// # Panics
    /// If the table has an index for any ids.
    pub(crate) fn new(core: &Core, all: &'a AllShards<'_>, table: u32) -> Self {
        let shards = all.iter().map(|shard| ShardRows {
            locations: shard.index(table).dense_locations().expect("ids of a dense range"),
            first: shard.row(core, 0).cast_const(),
        });
        Self {
            shards: shards.collect(),
            shard_bits: all.len().ilog2(),
            stride: core.layout.stride,
            row_bytes: core.layout.state_offset(),
        }
    }

    /// Write the addresses of the rows of `ids`, which are of the range.
    ///
    /// # Errors
    /// [`Absent`] if a row is not in memory.
    pub(crate) fn find(&self, ids: &[u64], rows: &mut [RowPtr]) -> Result<(), Absent> {
        for (ids, rows) in ids.chunks(CHUNK).zip(rows.chunks_mut(CHUNK)) {
            for &id in ids {
                let (shard, position) = self.place(id);
                prefetch(shard.locations.as_ptr().wrapping_add(position));
            }
            for (&id, row) in ids.iter().zip(rows) {
                let (shard, position) = self.place(id);
                let word = shard.locations.get(position).copied().unwrap_or_default();
                let slot = Location::slot_of_stored(word).ok_or(Absent)?;
                *row = shard.first.wrapping_byte_add(slot as usize * self.stride);
                prefetch_bytes(*row, self.row_bytes);
            }
        }
        Ok(())
    }

    /// The shard of an id, and the position there.
    #[inline(always)]
    fn place(&self, id: u64) -> (&ShardRows<'a>, usize) {
        (&self.shards[dense_shard_of(id, self.shards.len())], (id >> self.shard_bits) as usize)
    }
}
