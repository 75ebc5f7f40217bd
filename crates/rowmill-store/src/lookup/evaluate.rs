//! Pooled lookups that change nothing: evaluation and serving.
//!
//! Deduplicating ids costs as much as the rest of a lookup. Without a backward and clocks it is not needed:
//! ids are looked up in their order and pooled while the locks are held. Bags that need a cold row take the path of training
//! lookups.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rowmill_index::Found;
use rowmill_kernels::{RowArray, RowBags, RowPtr};
use rowmill_rows::{IdBag, IdRange};

use super::out::{Out, Pooled};
use super::placement::Placement;
use crate::error::StoreError;
use crate::group::{Absent, AllShards, Group, Locked, Residents, rows_in_order, walk};
use crate::table::{Key, TableState};

/// Ids looked up per acquisition of the locks: at most about 100 us of work.
const HOLD_IDS: i64 = 4096;
/// Bytes of rows found and then pooled together: a part of a core's second-level cache.
const PIECE_BYTES: usize = 128 << 10;

/// An output matrix: features pooled side by side.
struct Matrix<'a> {
    bags: &'a [(Arc<TableState>, IdBag<'a>)],
    /// Has room for the whole matrix. No two tasks write the same floats.
    out: Out,
    /// The first float of every feature.
    firsts: Vec<usize>,
    row_stride: usize,
    /// Whether the read belongs to a step.
    in_step: bool,
}

impl Matrix<'_> {
    /// The output of a piece's first vector.
    ///
    /// # Safety
    /// The piece lies within the matrix.
    unsafe fn first_of(&self, piece: &Piece) -> Out {
        // SAFETY: `out` has room for every bag of every feature.
        unsafe { self.out.add(self.firsts[piece.column] + piece.bags.start * self.row_stride) }
    }
}

/// Memory that pieces use one after another.
#[derive(Default)]
struct Scratch {
    /// Addresses of rows by lookup.
    rows: Vec<RowPtr>,
    /// Initial weights of missing rows.
    initial: Vec<f32>,
}

/// Some bags of one feature.
#[derive(Clone)]
struct Piece {
    /// Number of the feature.
    column: usize,
    bags: Range<usize>,
}

impl Group {
    /// Pool the rows of `bags` into `out`. A missing row reads as the values it would be created with. Each
    /// row is read at some moment during the call. Announcements for steps before `step` end. `times` is as
    /// in [`Group::lookup`].
    ///
    /// # Errors
    /// Wrong shapes, ids outside a dense table, or a row that cannot be read.
    pub(crate) fn evaluate<T: Pooled>(
        self: &Arc<Self>,
        bags: &[(Arc<TableState>, IdBag<'_>)],
        times: Option<&[&[u32]]>,
        out: &mut [T],
        placement: Placement,
        step: Option<u64>,
    ) -> Result<(), StoreError> {
        self.check_out(bags, out.len(), placement)?;
        self.advance(step);
        let lookups: usize = bags.iter().map(|(_, bag)| bag.ids.len()).sum();
        self.counters.count_call(Self::count_accesses(bags, times), lookups);
        let pieces: Vec<Piece> = bags
            .iter()
            .enumerate()
            .flat_map(|(column, (_, bag))| {
                pieces(bag, 0..bag.len(), HOLD_IDS).into_iter().map(move |bags| Piece { column, bags })
            })
            .collect();
        let dim = self.core.layout.dim;
        let matrix = Matrix {
            bags,
            out: T::out(out),
            firsts: placement.firsts(bags.iter().map(|(_, bag)| bag.len()), dim),
            row_stride: placement.stride(dim),
            in_step: step.is_some(),
        };
        // Where a call is spread over threads, every piece is a task. Else small features share the locks of all shards.
        let hold_ids = if self.workers.share(lookups) { 1 } else { HOLD_IDS as usize };
        let holds =
            holds(pieces.iter().map(|piece| ids_of(&bags[piece.column].1, &piece.bags).len()), hold_ids);
        self.workers.try_for_each(lookups, holds.len(), |number| {
            let mut left = &pieces[holds[number].clone()];
            while !left.is_empty() {
                let (mut done, rest) = self.pool_resident(&matrix, left);
                if let Some(rest) = rest {
                    let ids = ids_of(&bags[rest.column].1, &rest.bags).len();
                    self.counters.lookups_apart.fetch_add(ids as u64, Relaxed);
                    self.pool_apart(&matrix, &rest)?;
                    done += 1;
                }
                left = &left[done..];
            }
            Ok(())
        })
    }

    /// Pool pieces until one needs a row that is not in memory. Returns how many are done, and what is left of the next one.
    fn pool_resident(&self, matrix: &Matrix<'_>, hold: &[Piece]) -> (usize, Option<Piece>) {
        let Some(all) = self.read_all() else { return (0, hold.first().cloned()) };
        let mut scratch = Scratch::default();
        for (number, piece) in hold.iter().enumerate() {
            let rest = self.pool_held(matrix, &all, piece, &mut scratch);
            if !rest.bags.is_empty() {
                return (number, Some(rest));
            }
        }
        (hold.len(), None)
    }

    /// Pool the bags of one piece, as far as no row has to be read from the device. Returns the remaining bags.
    fn pool_held(
        &self,
        matrix: &Matrix<'_>,
        all: &AllShards<'_>,
        piece: &Piece,
        Scratch { rows, initial }: &mut Scratch,
    ) -> Piece {
        let (table, bag) = &matrix.bags[piece.column];
        if let IdRange::Dense { rows } = table.spec.ids
            && let Some(firsts) = rows_in_order(&self.core, all, table)
        {
            let array = RowArray { firsts: &firsts, stride: self.core.layout.stride, rows };
            // SAFETY: every id of the table's range has a row at this address, which the read locks keep in
            // place and unwritten. `out` has room for the feature's last bag (checked), and no two pieces
            // write the same floats.
            let has_all = unsafe {
                let out = matrix.first_of(piece);
                out.pool_array(&array, bag, piece.bags.clone(), &self.core.layout, matrix.row_stride)
            };
            // An id outside the range becomes an error where the ids are checked.
            let begin = if has_all { piece.bags.end } else { piece.bags.start };
            return Piece { column: piece.column, bags: begin..piece.bags.end };
        }
        let piece_ids = (PIECE_BYTES / self.core.layout.stride).max(1) as i64;
        // The padding id has no row and must not be looked up.
        let residents = if bag.padding.is_none() { Residents::new(&self.core, all, table) } else { None };
        for bags in pieces(bag, piece.bags.clone(), piece_ids) {
            let ids = &bag.ids[ids_of(bag, &bags)];
            rows.clear();
            rows.resize(ids.len(), std::ptr::null());
            let found = match &residents {
                Some(residents) => residents.find(ids, rows),
                None => self.find_resident(all, matrix, piece.column, ids, rows),
            };
            let missing = found.and_then(|missing| {
                if missing > 0 { self.initialize_missing(table, bag, ids, rows, initial) } else { Ok(()) }
            });
            if missing.is_err() {
                return Piece { column: piece.column, bags: bags.start..piece.bags.end };
            }
            // SAFETY: these are the rows of the piece's ids. The read locks keep those of the store in place and unwritten;
            // the others are in `initial`.
            unsafe { self.pool_found(matrix, &Piece { column: piece.column, bags }, rows) };
        }
        Piece { column: piece.column, bags: piece.bags.end..piece.bags.end }
    }

    /// Write the addresses of rows by lookup. Entries of padding and of missing rows are not written: they stay null. Returns
    /// the number of missing rows.
    ///
    /// # Errors
    /// [`Absent`] if a row is not in memory.
    fn find_resident(
        &self,
        mut all: &AllShards<'_>,
        matrix: &Matrix<'_>,
        column: usize,
        ids: &[u64],
        rows: &mut [RowPtr],
    ) -> Result<usize, Absent> {
        let (table, IdBag { padding, .. }) = &matrix.bags[column];
        let key = |(position, &id)| Key::new(table.local, table.spec.ids, id, position, self.shards.len());
        let keys: Vec<Key> = (0..).zip(ids).filter(|&(_, &id)| *padding != Some(id)).map(key).collect();
        let mut missing = 0;
        walk(&self.core, &mut all, &keys, |all, key, found| {
            let Some(Found { entry, location }) = found else {
                missing += 1;
                return Ok(());
            };
            let slot = location.slot().ok_or(Absent)?;
            let shard = all.shard(key);
            shard.touch(key.table, entry, slot, matrix.in_step);
            rows[key.position as usize] = shard.row(&self.core, slot).cast_const();
            Ok(())
        })?;
        Ok(missing)
    }

    /// Write the initial weights of missing rows to `initial`, and their addresses to `rows`, where they are null.
    ///
    /// # Errors
    /// [`Absent`] if an id is outside the table's range, or the weights take more memory than a piece may: ids are checked and
    /// memory is claimed on the other path.
    fn initialize_missing(
        &self,
        table: &TableState,
        bag: &IdBag<'_>,
        ids: &[u64],
        rows: &mut [RowPtr],
        initial: &mut Vec<f32>,
    ) -> Result<(), Absent> {
        let width = self.core.layout.state_offset() / 4;
        let missing: Vec<usize> =
            (0..ids.len()).filter(|&at| rows[at].is_null() && bag.padding != Some(ids[at])).collect();
        if missing.len() * width * 4 > PIECE_BYTES {
            return Err(Absent);
        }
        initial.clear();
        initial.resize(missing.len() * width, 0.0);
        for (&at, weights) in missing.iter().zip(initial.chunks_exact_mut(width)) {
            Self::check_ids(table, &ids[at..=at]).map_err(|_| Absent)?;
            self.core.initialize_weights(table, ids[at], weights);
            rows[at] = weights.as_ptr();
        }
        Ok(())
    }

    /// Pool the bags of one piece.
    ///
    /// # Safety
    /// `rows` holds the addresses of the rows of their ids, in this order; null for padding.
    unsafe fn pool_found(&self, matrix: &Matrix<'_>, piece: &Piece, rows: &[RowPtr]) {
        let bag = &matrix.bags[piece.column].1;
        let ids = ids_of(bag, &piece.bags);
        let offsets = &bag.offsets[piece.bags.start..=piece.bags.end];
        let offsets: Vec<i64> = offsets.iter().map(|&at| at - ids.start as i64).collect();
        let weights = bag.weights.map(|weights| &weights[ids]);
        let bags = RowBags { rows, offsets: &offsets, weights, pooling: bag.pooling };
        // SAFETY: by the contract of this function; offsets were validated; `out` has room for the feature's last
        // bag (checked), and no two pieces write the same floats.
        unsafe {
            let out = matrix.first_of(piece);
            out.pool_rows(&bags, &self.core.layout, matrix.row_stride);
        }
    }

    /// Pool bags on the path of training lookups, with deduplicated ids.
    fn pool_apart(self: &Arc<Self>, matrix: &Matrix<'_>, piece: &Piece) -> Result<(), StoreError> {
        let (table, bag) = &matrix.bags[piece.column];
        let ids = ids_of(bag, &piece.bags);
        let offsets = &bag.offsets[piece.bags.start..=piece.bags.end];
        let offsets: Vec<i64> = offsets.iter().map(|&at| at - ids.start as i64).collect();
        let weights = bag.weights.map(|weights| &weights[ids.clone()]);
        let bag = IdBag { ids: &bag.ids[ids], offsets: &offsets, weights, ..*bag };
        // Ids whose rows are in memory are in range; the others are checked here.
        Self::check_ids_padded(table, &bag)?;
        let placement = Placement::Columns { row_stride: matrix.row_stride };
        // SAFETY: the matrix has room for these bags (checked), and no two pieces write the same floats.
        unsafe {
            let out = matrix.first_of(piece);
            self.pool_distinct(&[(Arc::clone(table), bag)], out, placement, None).map(drop)
        }
    }
}

/// Cut some bags of a feature into pieces of at most `ids_max` ids. A longer bag is a separate piece.
fn pieces(bag: &IdBag<'_>, bags: Range<usize>, ids_max: i64) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut begin = bags.start;
    while begin < bags.end {
        let last = bag.offsets[begin] + ids_max;
        // A search, because a pass over all offsets takes 5 % of a lookup with one id per bag.
        let fitting = bag.offsets[begin + 1..=bags.end].partition_point(|&end| end <= last);
        let end = begin + fitting.max(1);
        pieces.push(begin..end);
        begin = end;
    }
    pieces
}

/// Ranges of consecutive pieces, given their numbers of ids, that have at most `ids_max` ids together, or are one piece.
fn holds(ids: impl Iterator<Item = usize>, ids_max: usize) -> Vec<Range<usize>> {
    let mut holds: Vec<Range<usize>> = Vec::new();
    let mut held = 0;
    for (number, ids) in ids.enumerate() {
        match holds.last_mut() {
            Some(hold) if held + ids <= ids_max => {
                hold.end = number + 1;
                held += ids;
            }
            _ => {
                holds.push(number..number + 1);
                held = ids;
            }
        }
    }
    holds
}

/// The range of ids of some bags.
fn ids_of(bag: &IdBag<'_>, bags: &Range<usize>) -> Range<usize> {
    bag.offsets[bags.start] as usize..bag.offsets[bags.end] as usize
}

#[cfg(test)]
mod tests {
    use rowmill_rows::Pooling;

    use super::*;

    #[test]
    fn pieces_hold_as_many_bags_as_fit_and_at_least_one() {
        let ids = [0; 12];
        let offsets = [0, 2, 2, 5, 11, 11, 12];
        let bag = IdBag { ids: &ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum };
        assert_eq!(pieces(&bag, 0..6, 5), [0..3, 3..4, 4..6]);
        assert_eq!(pieces(&bag, 0..6, 6), [0..3, 3..5, 5..6]);
        assert_eq!(pieces(&bag, 1..3, 1), [1..2, 2..3]);
        assert_eq!(pieces(&bag, 0..6, 100).len(), 1);
        assert!(pieces(&bag, 6..6, 5).is_empty());
    }

    #[test]
    fn holds_have_as_many_pieces_as_fit_and_at_least_one() {
        assert_eq!(holds([3, 2, 0, 6, 1, 4].into_iter(), 5), [0..3, 3..4, 4..6]);
        assert_eq!(holds([3, 2, 0, 6].into_iter(), 0), [0..1, 1..2, 2..3, 3..4]);
        assert!(holds([].into_iter(), 5).is_empty());
    }
}
