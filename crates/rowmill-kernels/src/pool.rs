//! Pool: the forward of an embedding bag, from rows in place to one vector per bag.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use rowmill_rows::{Dtype, IdBag, Pooling};

use crate::arch::{InstructionSet, Kernel, Vector};
use crate::float::Float;
use crate::lookups::assert_shape;
use crate::sums::{Sums, sum_all};
use crate::weights::{Bf16, Element, F32};
use crate::{Lookups, RowPtr, SKIP};

/// Write the sum (or mean) of the rows of bag `b` to `out + b * out_stride`, rounded to the nearest number of
/// type `T`.
///
/// Weights are widened to 32-bit floats as they are read; of split weights, only the upper halves are read.
/// Rows are added in lookup order, and weights apply by a fused multiply-add. A mean is the sum divided by
/// the number of lookups that are not padding. This equals `torch.nn.EmbeddingBag` on a CPU bit for bit.
/// Empty bags become 0.
///
/// # Safety
/// Every index in `lookups.inverse` is [`SKIP`] or below `rows.len()`. Rows looked up have `dim` readable
/// weights of type `dtype` that no other thread writes meanwhile. The offsets do not decrease. `out` has
/// `dim` writable numbers at every `b * out_stride`, and does not overlap the rows.
pub unsafe fn pool<T: Float>(
    rows: &[RowPtr],
    lookups: &Lookups<'_>,
    dtype: Dtype,
    dim: usize,
    out: *mut T,
    out_stride: usize,
) {
    // SAFETY: the caller upholds the contract.
    unsafe { pool_with(InstructionSet::best(), rows, lookups, dtype, dim, out, out_stride) }
}

/// [`pool`] with a chosen instruction set.
///
/// # Safety
/// As for [`pool`].
pub unsafe fn pool_with<T: Float>(
    set: InstructionSet,
    rows: &[RowPtr],
    lookups: &Lookups<'_>,
    dtype: Dtype,
    dim: usize,
    out: *mut T,
    out_stride: usize,
) {
    lookups.assert_shape();
    debug_assert!(lookups.inverse.iter().all(|&unique| unique == SKIP || (unique as usize) < rows.len()));
    let Lookups { inverse, offsets, weights, pooling } = *lookups;
    let pool = Pool { rows: Listed { rows, inverse }, offsets, weights, pooling, dim, out, out_stride };
    // SAFETY: the caller upholds the contract.
    unsafe { pool.run_with(set, dtype) }
}

/// Bags of rows: bag `b` pools `rows[offsets[b]..offsets[b + 1]]`.
#[derive(Clone, Copy, Debug)]
pub struct RowBags<'a> {
    /// The row of each lookup; null for padding.
    pub rows: &'a [RowPtr],
    /// `B + 1` non-decreasing positions in `rows`.
    pub offsets: &'a [i64],
    /// One factor per lookup; only for sum pooling.
    pub weights: Option<&'a [f32]>,
    /// How a bag is pooled into one vector.
    pub pooling: Pooling,
}

/// [`pool`] with one address per lookup.
///
/// # Panics
/// If an offset exceeds the number of rows.
///
/// # Safety
/// As for [`pool`].
pub unsafe fn pool_rows<T: Float>(
    bags: &RowBags<'_>,
    dtype: Dtype,
    dim: usize,
    out: *mut T,
    out_stride: usize,
) {
    // SAFETY: the caller upholds the contract.
    unsafe { pool_rows_with(InstructionSet::best(), bags, dtype, dim, out, out_stride) }
}

/// [`pool_rows`] with a chosen instruction set.
///
/// # Panics
/// As [`pool_rows`].
///
/// # Safety
/// As for [`pool_rows`].
pub unsafe fn pool_rows_with<T: Float>(
    set: InstructionSet,
    bags: &RowBags<'_>,
    dtype: Dtype,
    dim: usize,
    out: *mut T,
    out_stride: usize,
) {
    let &RowBags { rows, offsets, weights, pooling } = bags;
    assert_shape(rows.len(), offsets, weights, pooling);
    let pool = Pool { rows: InTurn { rows }, offsets, weights, pooling, dim, out, out_stride };
    // SAFETY: the caller upholds the contract.
    unsafe { pool.run_with(set, dtype) }
}

/// The rows of a table that are stored in the order of their ids, distributed over shards: row `id` is number
/// `id / shards` of shard `id % shards`.
#[derive(Clone, Copy, Debug)]
pub struct RowArray<'a> {
    /// Address of row number 0 of every shard. The number of shards is a power of two.
    pub firsts: &'a [RowPtr],
    /// Bytes from the start of one row of a shard to the next.
    pub stride: usize,
    /// Number of rows: ids are below it.
    pub rows: u64,
}

impl RowArray<'_> {
    /// The address that row `id` has if there is such a row.
    ///
    /// # Safety
    /// There is at least one shard.
    #[inline(always)]
    unsafe fn address(&self, id: u64) -> RowPtr {
        let shards = self.firsts.len();
        // SAFETY: the index is below the number of shards, which is a power of two.
        let first = unsafe { *self.firsts.get_unchecked(id as usize & (shards - 1)) };
        let number = (id >> shards.trailing_zeros()) as usize;
        first.wrapping_byte_add(number.wrapping_mul(self.stride))
    }
}

/// [`pool`] for the rows of an array: the result of bag `b` in `bags`, a range of the bags of `bag`, is
/// written to `out + (b - bags.start) * out_stride`.
///
/// The address of a row is computed from its id, so no list of rows is made. Ids are checked as their rows are read: a
/// pass over the ids before would wait for their memory, which costs as much as pooling rows of 16 weights.
///
/// Returns whether the array has a row for every id of these bags that is not padding. If not, the results of all bags
/// are undefined.
///
/// # Panics
/// If the number of shards is not a power of two, or an offset exceeds the number of ids.
///
/// # Safety
/// As for [`pool`].
pub unsafe fn pool_array<T: Float>(
    array: &RowArray<'_>,
    bag: &IdBag<'_>,
    bags: Range<usize>,
    dtype: Dtype,
    dim: usize,
    out: *mut T,
    out_stride: usize,
) -> bool {
    // SAFETY: the caller upholds the contract.
    unsafe { pool_array_with(InstructionSet::best(), array, bag, bags, dtype, dim, out, out_stride) }
}

/// [`pool_array`] with a chosen instruction set.
///
/// # Panics
/// As [`pool_array`].
///
/// # Safety
/// As for [`pool_array`].
#[allow(clippy::too_many_arguments, reason = "the arguments of `pool_array`")]
pub unsafe fn pool_array_with<T: Float>(
    set: InstructionSet,
    array: &RowArray<'_>,
    bag: &IdBag<'_>,
    bags: Range<usize>,
    dtype: Dtype,
    dim: usize,
    out: *mut T,
    out_stride: usize,
) -> bool {
    let &IdBag { ids, offsets, weights, padding, pooling } = bag;
    let offsets = &offsets[bags.start..=bags.end];
    assert!(array.firsts.len().is_power_of_two(), "{} shards", array.firsts.len());
    assert_shape(ids.len(), offsets, weights, pooling);
    let missed = Cell::new(false);
    let rows = InOrder { array: *array, ids, padding, skipped: padding.unwrap_or(u64::MAX), missed: &missed };
    let pool = Pool { rows, offsets, weights, pooling, dim, out, out_stride };
    // SAFETY: the caller upholds the contract.
    unsafe { pool.run_with(set, dtype) };
    !missed.get()
}

/// Finds the rows of lookups.
trait Rows: Copy {
    /// The row of a lookup; none for padding and for a row that is missing.
    ///
    /// # Safety
    /// `lookup` is below the number of lookups.
    unsafe fn row(&self, lookup: usize) -> Option<NonNull<f32>>;

    /// What to prefetch for a lookup, which may be any address.
    ///
    /// # Safety
    /// As for [`Rows::row`].
    #[inline(always)]
    unsafe fn ahead(&self, lookup: usize) -> Option<RowPtr> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.row(lookup).map(|row| row.as_ptr().cast_const()) }
    }

    /// How many of these lookups are not padding.
    fn count(&self, lookups: Range<usize>) -> usize;
}

/// Rows addressed by their position in a list.
#[derive(Clone, Copy)]
struct Listed<'a> {
    rows: &'a [RowPtr],
    inverse: &'a [u32],
}

impl Rows for Listed<'_> {
    #[inline(always)]
    unsafe fn row(&self, lookup: usize) -> Option<NonNull<f32>> {
        // SAFETY: the caller upholds the contract; all indices are inside `rows`.
        unsafe {
            let unique = *self.inverse.get_unchecked(lookup);
            if unique == SKIP {
                return None;
            }
            Some(NonNull::new_unchecked(self.rows.get_unchecked(unique as usize).cast_mut()))
        }
    }

    #[inline(always)]
    fn count(&self, lookups: Range<usize>) -> usize {
        self.inverse[lookups].iter().filter(|&&unique| unique != SKIP).count()
    }
}

/// One row per lookup, null for padding.
#[derive(Clone, Copy)]
struct InTurn<'a> {
    rows: &'a [RowPtr],
}

impl Rows for InTurn<'_> {
    #[inline(always)]
    unsafe fn row(&self, lookup: usize) -> Option<NonNull<f32>> {
        // SAFETY: the caller upholds the contract.
        NonNull::new(unsafe { self.rows.get_unchecked(lookup) }.cast_mut())
    }

    #[inline(always)]
    fn count(&self, lookups: Range<usize>) -> usize {
        self.rows[lookups].iter().filter(|row| !row.is_null()).count()
    }
}

/// Rows addressed by their id.
#[derive(Clone, Copy)]
struct InOrder<'a> {
    array: RowArray<'a>,
    ids: &'a [u64],
    padding: Option<u64>,
    /// The padding id. Without padding, an id that no array has a row for.
    skipped: u64,
    /// Set when a lookup has no row.
    missed: &'a Cell<bool>,
}

impl Rows for InOrder<'_> {
    #[inline(always)]
    unsafe fn row(&self, lookup: usize) -> Option<NonNull<f32>> {
        // SAFETY: the caller upholds the contract; there is at least one shard.
        unsafe {
            let id = *self.ids.get_unchecked(lookup);
            if id >= self.array.rows {
                if self.padding != Some(id) {
                    self.missed.set(true);
                }
                return None;
            }
            if id == self.skipped {
                return None;
            }
            Some(NonNull::new_unchecked(self.array.address(id).cast_mut()))
        }
    }

    #[inline(always)]
    unsafe fn ahead(&self, lookup: usize) -> Option<RowPtr> {
        // SAFETY: the caller upholds the contract; there is at least one shard.
        unsafe { Some(self.array.address(*self.ids.get_unchecked(lookup))) }
    }

    #[inline(always)]
    fn count(&self, lookups: Range<usize>) -> usize {
        self.ids[lookups].iter().filter(|&&id| self.padding != Some(id)).count()
    }
}

/// The arguments of a call, for both ways of addressing rows.
struct Pool<'a, R, T> {
    rows: R,
    offsets: &'a [i64],
    weights: Option<&'a [f32]>,
    pooling: Pooling,
    dim: usize,
    out: *mut T,
    out_stride: usize,
}

impl<R: Rows, T: Float> Pool<'_, R, T> {
    /// # Safety
    /// As for [`pool`].
    unsafe fn run_with(self, set: InstructionSet, dtype: Dtype) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match dtype {
                Dtype::F32 => self.run_typed::<F32>(set),
                // Of split weights, only the upper halves, which are stored first.
                Dtype::Bf16 | Dtype::SplitBf16 => self.run_typed::<Bf16>(set),
            }
        }
    }

    /// # Safety
    /// As for [`pool`]; weights are of type `E`.
    unsafe fn run_typed<E: Element>(self, set: InstructionSet) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match (self.weights, self.pooling) {
                (None, Pooling::Sum) => self.run_mode::<E, false, false>(&[], set),
                (None, Pooling::Mean) => self.run_mode::<E, false, true>(&[], set),
                (Some(weights), _) => self.run_mode::<E, true, false>(weights, set),
            }
        }
    }

    /// The usual widths are constants of functions of their own. A loop that keeps all its variables in registers
    /// prefetches more rows at a time: loads from the stack take places in the load buffer of the CPU. With 64 weights,
    /// a sum of 20 rows took 20 ns per row before, and 17 ns since.
    ///
    /// # Safety
    /// As for [`pool`]; weights are of type `E`.
    unsafe fn run_mode<E: Element, const WEIGHTED: bool, const MEAN: bool>(
        self,
        weights: &[f32],
        set: InstructionSet,
    ) {
        // SAFETY: the caller upholds the contract; each width is used only for that `dim`.
        unsafe {
            match self.dim {
                16 => set.run(Bags::<R, E, T, WEIGHTED, MEAN, 16>(self, weights, PhantomData)),
                32 => set.run(Bags::<R, E, T, WEIGHTED, MEAN, 32>(self, weights, PhantomData)),
                64 => set.run(Bags::<R, E, T, WEIGHTED, MEAN, 64>(self, weights, PhantomData)),
                128 => set.run(Bags::<R, E, T, WEIGHTED, MEAN, 128>(self, weights, PhantomData)),
                _ => set.run(Bags::<R, E, T, WEIGHTED, MEAN, 0>(self, weights, PhantomData)),
            }
        }
    }
}

/// One sum per bag, with one term per lookup. The slice holds the weights, if any. `DIM` is the width of a row, or 0 for
/// the width in [`Pool`].
struct Bags<'a, R, E, T, const WEIGHTED: bool, const MEAN: bool, const DIM: usize>(
    Pool<'a, R, T>,
    &'a [f32],
    PhantomData<E>,
);

impl<R: Rows, E: Element, T: Float, const WEIGHTED: bool, const MEAN: bool, const DIM: usize> Kernel
    for Bags<'_, R, E, T, WEIGHTED, MEAN, DIM>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller upholds the contract.
        unsafe { sum_all::<V, _>(&self, if DIM == 0 { self.0.dim } else { DIM }) }
    }
}

impl<R: Rows, E: Element, T: Float, const WEIGHTED: bool, const MEAN: bool, const DIM: usize> Sums
    for Bags<'_, R, E, T, WEIGHTED, MEAN, DIM>
{
    const DIVIDE: bool = MEAN;
    const WHOLE: bool = false;
    type Element = E;
    type Target = T;

    #[inline(always)]
    fn len(&self) -> usize {
        self.0.offsets.len().saturating_sub(1)
    }

    #[inline(always)]
    unsafe fn terms(&self, sum: usize) -> Range<usize> {
        let offsets = self.0.offsets;
        // SAFETY: `sum` is below `len`, and `offsets` has one entry more.
        unsafe { *offsets.get_unchecked(sum) as usize..*offsets.get_unchecked(sum + 1) as usize }
    }

    #[inline(always)]
    unsafe fn term(&self, term: usize) -> Option<NonNull<f32>> {
        // SAFETY: all offsets are inside the lookups.
        unsafe { self.0.rows.row(term) }
    }

    #[inline(always)]
    unsafe fn ahead(&self, term: usize) -> Option<*const f32> {
        // SAFETY: all offsets are inside the lookups.
        unsafe { self.0.rows.ahead(term) }
    }

    #[inline(always)]
    unsafe fn add<V: Vector>(&self, sum: V, vector: V, term: usize) -> V {
        // SAFETY: the caller upholds the contract; there is one weight per lookup.
        unsafe {
            if WEIGHTED {
                V::splat(*self.1.get_unchecked(term)).mul_add(vector, sum)
            } else {
                sum.add(vector)
            }
        }
    }

    #[inline(always)]
    unsafe fn divisor(&self, sum: usize) -> f32 {
        // SAFETY: the caller upholds the contract.
        let terms = unsafe { self.terms(sum) };
        self.0.rows.count(terms).max(1) as f32
    }

    #[inline(always)]
    unsafe fn target(&self, sum: usize) -> *mut T {
        // SAFETY: the caller provides room for every bag.
        unsafe { self.0.out.add(sum * self.0.out_stride) }
    }
}
