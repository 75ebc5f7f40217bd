//! Pooled lookups that change nothing: evaluation and serving.
//!
//! Nothing is remembered for a backward and no clock is taken, so ids need not be made distinct first, which
//! costs as much as the rest of a lookup: every id is looked up where it stands, piece by piece, and pooled while
//! the locks are held. A piece that meets a cold row, a row that was never born or a shard that is being
//! changed goes the way of every other lookup.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use rowmill_kernels::{Lookups, RowPtr, SKIP, pool};
use rowmill_rows::IdBag;

use crate::StoreError;
use crate::group::Group;
use crate::keys::Key;
use crate::scatter::Scatter;
use crate::table_state::TableState;
use crate::walk::{Locked, walk};

/// Bytes of rows pooled under one hold of the locks: a part of a core's second-level cache.
const PIECE_BYTES: usize = 128 << 10;

/// Some bags of one feature.
struct Piece<'a> {
    table: &'a Arc<TableState>,
    /// The ids of the piece, with offsets from 0.
    bag: IdBag<'a>,
    /// Number of the first bag, and the feature's column.
    first: usize,
    column: usize,
}

impl Group {
    /// Pool the rows of `bags` into `out`, bag `b` of feature `f` at `b * row_stride + f * dim`. A row that is
    /// not there counts as it would be born. Rows are read as of a moment during the call, each of its own.
    ///
    /// # Errors
    /// Wrong shapes, ids outside a dense table, a row that cannot be read.
    pub(crate) fn evaluate(
        self: &Arc<Self>,
        bags: &[(Arc<TableState>, IdBag<'_>)],
        out: &mut [f32],
        row_stride: usize,
    ) -> Result<(), StoreError> {
        self.check_out(bags, out.len(), row_stride)?;
        let lookups: usize = bags.iter().map(|(_, bag)| bag.ids.len()).sum();
        Self::count_accesses(bags);
        self.counters.count_call(lookups, lookups);
        let pieces: Vec<(usize, Range<usize>)> = bags
            .iter()
            .enumerate()
            .flat_map(|(column, (_, bag))| self.pieces(bag).into_iter().map(move |bags| (column, bags)))
            .collect();
        let out = Scatter::new(out);
        let work = |(column, range): (usize, Range<usize>)| {
            let (table, bag) = &bags[column];
            let ids = bag.offsets[range.start] as usize..bag.offsets[range.end] as usize;
            let offsets: Vec<i64> =
                bag.offsets[range.start..=range.end].iter().map(|&at| at - ids.start as i64).collect();
            let bag = IdBag {
                ids: &bag.ids[ids.clone()],
                offsets: &offsets,
                weights: bag.weights.map(|weights| &weights[ids]),
                ..*bag
            };
            let piece = Piece { table, bag, first: range.start, column };
            if self.pool_resident(&piece, &out, row_stride) {
                return Ok(());
            }
            self.pool_piece_apart(&piece, &out, row_stride)
        };
        if self.workers.share(lookups) {
            self.workers.run(|| pieces.into_par_iter().try_for_each(work))
        } else {
            pieces.into_iter().try_for_each(work)
        }
    }

    /// Cut the bags of a feature into pieces.
    fn pieces(&self, bag: &IdBag<'_>) -> Vec<Range<usize>> {
        let ids_max = (PIECE_BYTES / self.core.layout.stride).max(1) as i64;
        let mut pieces = Vec::new();
        let mut begin = 0;
        for end in 1..=bag.len() {
            let is_last = end == bag.len();
            if is_last || bag.offsets[end + 1] - bag.offsets[begin] > ids_max {
                pieces.push(begin..end);
                begin = end;
            }
        }
        pieces
    }

    /// Pool a piece whose rows are all in memory; false if they are not, or a shard is being changed.
    fn pool_resident(&self, piece: &Piece<'_>, out: &Scatter<'_, f32>, row_stride: usize) -> bool {
        let Some(mut all) = self.try_read_all() else { return false };
        let Piece { table, bag, first, column } = piece;
        let mut inverse: Vec<u32> = (0..bag.ids.len() as u32).collect();
        let mut keys = Vec::with_capacity(bag.ids.len());
        for (position, &id) in bag.ids.iter().enumerate() {
            if bag.padding == Some(id) {
                inverse[position] = SKIP;
            } else {
                keys.push(Key::new(table.local, table.spec.ids, id, position as u32, self.shards.len()));
            }
        }
        let mut rows: Vec<RowPtr> = vec![std::ptr::null(); bag.ids.len()];
        let mut resident = true;
        let Ok(()) = walk::<false, _, _>(&self.core, &mut all, &keys, |all, key, found| {
            let Some((place, slot)) = found.and_then(|found| Some((found.place, found.location.slot()?)))
            else {
                resident = false;
                return Ok::<(), Infallible>(());
            };
            let shard = all.shard(key);
            shard.touch(key.table, place, slot, false);
            rows[key.position as usize] = shard.row(&self.core, slot).cast_const();
            Ok(())
        });
        if !resident {
            return false;
        }
        let dim = self.core.layout.dim;
        let lookups =
            Lookups { inverse: &inverse, offsets: bag.offsets, weights: bag.weights, pooling: bag.pooling };
        // SAFETY: every position that is not skipped has the address of a resident row, which the read locks
        // keep in place and unwritten; offsets were validated; `out` has room for the feature's last bag
        // (checked), and no two pieces write the same floats.
        unsafe {
            pool(&rows, &lookups, dim, out.pointer(first * row_stride + column * dim), row_stride);
        }
        true
    }

    /// Pool a piece as every other lookup is pooled.
    fn pool_piece_apart(
        self: &Arc<Self>,
        piece: &Piece<'_>,
        out: &Scatter<'_, f32>,
        row_stride: usize,
    ) -> Result<(), StoreError> {
        let dim = self.core.layout.dim;
        let mut pooled = vec![0.0; piece.bag.len() * dim];
        self.pool_distinct(&[(Arc::clone(piece.table), piece.bag)], &mut pooled, dim, None)?;
        for (bag, pooled) in (piece.first..).zip(pooled.chunks_exact(dim)) {
            // SAFETY: as in `pool_resident`.
            let out = unsafe { out.slice(bag * row_stride + piece.column * dim, dim) };
            out.copy_from_slice(pooled);
        }
        Ok(())
    }
}
