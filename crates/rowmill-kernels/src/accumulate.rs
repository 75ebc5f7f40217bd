//! Accumulate: the backward of an embedding bag, which sums gradients of bags into gradients of unique rows.

use std::ops::Range;
use std::ptr::NonNull;

use rowmill_rows::Pooling;

use crate::arch::{InstructionSet, Kernel, Vector};
use crate::sums::{Sums, sum_all, sum_one};
use crate::weights::F32;
use crate::{Lookups, SKIP};

/// Lookups sorted by unique row: for each row the bags that looked it up, in lookup order.
///
/// Built once per step by a counting sort. Different threads can then accumulate different ranges of unique
/// rows. The buffers are kept from step to step.
#[derive(Clone, Debug, Default)]
pub struct LookupOrder {
    /// Row `u` was looked up by `bags[starts[u]..starts[u + 1]]`. Has one more entry during the build.
    starts: Vec<u32>,
    /// The bag of each lookup, sorted by row.
    bags: Vec<u32>,
    /// Factor of each bag's gradient. Empty for unweighted sums.
    factors: Vec<f32>,
}

impl LookupOrder {
    /// Sort `lookups`, whose indices are [`SKIP`] or below `unique`.
    ///
    /// # Panics
    /// If an index is neither [`SKIP`] nor below `unique`, or offsets do not fit the lookups.
    pub fn build(&mut self, lookups: &Lookups<'_>, unique: usize) {
        lookups.assert_shape();
        let Lookups { inverse, offsets, weights, pooling } = *lookups;
        assert!(inverse.len() < SKIP as usize, "too many lookups for 32-bit positions");
        let begin = offsets.first().map_or(0, |&offset| offset as usize);
        let end = offsets.last().map_or(0, |&offset| offset as usize);

        // Counts are stored two positions after their row. The prefix sum turns them into starts one position
        // after it. These serve as cursors and end as the start of the next row.
        self.starts.clear();
        self.starts.resize(unique + 2, 0);
        // A local slice: through `self`, every store would make the compiler reload the pointer.
        let starts = self.starts.as_mut_slice();
        for &index in &inverse[begin..end] {
            if index != SKIP {
                assert!((index as usize) < unique, "unique index {index} of {unique}");
                starts[index as usize + 2] += 1;
            }
        }
        let mut total = 0;
        for start in starts.iter_mut() {
            total += *start;
            *start = total;
        }

        // Every entry is written below, so entries of an earlier batch need not be cleared.
        let scaled = weights.is_some() || pooling == Pooling::Mean;
        self.bags.resize(total as usize, 0);
        self.factors.resize(if scaled { total as usize } else { 0 }, 0.0);
        let (bags, factors) = (self.bags.as_mut_slice(), self.factors.as_mut_slice());
        for (bag, ends) in offsets.windows(2).enumerate() {
            let range = ends[0] as usize..ends[1] as usize;
            let share = if pooling == Pooling::Mean { 1.0 / lookups.count(bag).max(1) as f32 } else { 1.0 };
            for (lookup, &index) in range.clone().zip(&inverse[range]) {
                if index == SKIP {
                    continue;
                }
                let cursor = &mut starts[index as usize + 1];
                bags[*cursor as usize] = bag as u32;
                if scaled {
                    factors[*cursor as usize] = weights.map_or(share, |weights| weights[lookup]);
                }
                *cursor += 1;
            }
        }
        self.starts.truncate(unique + 1);
    }

    /// Number of unique rows.
    pub fn unique(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Number of lookups of the unique rows in `range`, without padding. Threads balance their work by it.
    ///
    /// # Panics
    /// If the range does not lie inside the unique rows.
    pub fn lookups(&self, range: Range<usize>) -> usize {
        if range.is_empty() { 0 } else { (self.starts[range.end] - self.starts[range.start]) as usize }
    }

    /// The first bag that looked up a unique row, if any.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn first_bag(&self, unique: u32) -> Option<u32> {
        let (begin, end) = (self.starts[unique as usize], self.starts[unique as usize + 1]);
        (begin < end).then(|| self.bags[begin as usize])
    }

    /// Bytes allocated for the buffers.
    pub fn bytes(&self) -> usize {
        4 * (self.starts.capacity() + self.bags.capacity() + self.factors.capacity())
    }
}

/// Write the gradient of unique row `range.start + i` to `out[i * dim..][..dim]`: the sum over its lookups of
/// the bag's gradient at `gradients + bag * stride`, times the lookup's weight, or divided by the bag's count
/// for a mean.
///
/// Terms are rounded and then added in lookup order, as `torch` sums a sparse gradient. Bags are numbered
/// from the first offset that the order was built with.
///
/// # Panics
/// If `out` is not `range.len() * dim` floats, or the range is not within the unique rows.
///
/// # Safety
/// `gradients` has `dim` readable floats at `bag * stride` for every bag of the lookups.
pub unsafe fn accumulate_range(
    order: &LookupOrder,
    range: Range<usize>,
    gradients: *const f32,
    stride: usize,
    dim: usize,
    out: &mut [f32],
) {
    // SAFETY: the caller upholds the contract.
    unsafe { accumulate_range_with(InstructionSet::best(), order, range, gradients, stride, dim, out) }
}

/// [`accumulate_range`] with a chosen instruction set.
///
/// # Panics
/// As for [`accumulate_range`].
///
/// # Safety
/// As for [`accumulate_range`].
pub unsafe fn accumulate_range_with(
    set: InstructionSet,
    order: &LookupOrder,
    range: Range<usize>,
    gradients: *const f32,
    stride: usize,
    dim: usize,
    out: &mut [f32],
) {
    assert_eq!(Some(out.len()), range.len().checked_mul(dim), "one gradient per row");
    // SAFETY: the caller upholds the contract, and `out` has room.
    unsafe { set.run(Accumulate::new(order, range, gradients, stride, dim, out.as_mut_ptr())) }
}

pub(crate) struct Accumulate<'a> {
    order: &'a LookupOrder,
    starts: &'a [u32],
    gradients: *const f32,
    stride: usize,
    dim: usize,
    out: *mut f32,
}

impl<'a> Accumulate<'a> {
    /// Check the arguments of [`accumulate_range`] as far as possible.
    #[inline(always)]
    pub(crate) fn new(
        order: &'a LookupOrder,
        range: Range<usize>,
        gradients: *const f32,
        stride: usize,
        dim: usize,
        out: *mut f32,
    ) -> Self {
        assert!(
            range.start <= range.end && range.end <= order.unique(),
            "the range is outside the unique rows"
        );
        let starts = if range.is_empty() { &[][..] } else { &order.starts[range.start..=range.end] };
        Self { order, starts, gradients, stride, dim, out }
    }
}

impl Kernel for Accumulate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller upholds the contract; `SCALED` is set only if there are factors.
        unsafe {
            if self.order.factors.is_empty() {
                sum_all::<V, _>(&Rows::<false, true>(&self), self.dim);
            } else {
                sum_all::<V, _>(&Rows::<true, true>(&self), self.dim);
            }
        }
    }
}

/// The gradient sums of single unique rows, in any order, all written to the same address.
pub(crate) struct Scattered<'a> {
    accumulate: Accumulate<'a>,
}

impl<'a> Scattered<'a> {
    /// `out` has room for `dim` floats rounded up to whole vectors. Every bag has `dim` floats at
    /// `gradients + bag * stride`.
    #[inline(always)]
    pub(crate) fn new(
        order: &'a LookupOrder,
        gradients: *const f32,
        stride: usize,
        dim: usize,
        out: *mut f32,
    ) -> Self {
        Self { accumulate: Accumulate::new(order, 0..order.unique(), gradients, stride, dim, out) }
    }

    /// Write the sum of unique row `row`.
    ///
    /// # Safety
    /// As for [`accumulate_range`]; `row` is a unique row of the order.
    #[inline(always)]
    pub(crate) unsafe fn sum<V: Vector>(&self, row: usize) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            if self.accumulate.order.factors.is_empty() {
                sum_one::<V, _>(&Rows::<false, false>(&self.accumulate), row, self.accumulate.dim);
            } else {
                sum_one::<V, _>(&Rows::<true, false>(&self.accumulate), row, self.accumulate.dim);
            }
        }
    }
}

/// One sum per unique row, with one term per lookup. Written to separate addresses (`APART`), or all to one.
struct Rows<'a, const SCALED: bool, const APART: bool>(&'a Accumulate<'a>);

impl<const SCALED: bool, const APART: bool> Sums for Rows<'_, SCALED, APART> {
    const DIVIDE: bool = false;
    const WHOLE: bool = !APART;
    type Element = F32;
    type Target = f32;

    #[inline(always)]
    fn len(&self) -> usize {
        self.0.starts.len().saturating_sub(1)
    }

    #[inline(always)]
    unsafe fn terms(&self, sum: usize) -> Range<usize> {
        // SAFETY: `sum` is below `len`, and `starts` has one entry more.
        unsafe { *self.0.starts.get_unchecked(sum) as usize..*self.0.starts.get_unchecked(sum + 1) as usize }
    }

    #[inline(always)]
    unsafe fn term(&self, term: usize) -> Option<NonNull<f32>> {
        // SAFETY: all starts lie inside `bags`, and every bag has a gradient.
        unsafe {
            let bag = *self.0.order.bags.get_unchecked(term) as usize;
            Some(NonNull::new_unchecked(self.0.gradients.add(bag * self.0.stride).cast_mut()))
        }
    }

    #[inline(always)]
    unsafe fn add<V: Vector>(&self, sum: V, vector: V, term: usize) -> V {
        // SAFETY: the caller upholds the contract; there is one factor per entry of `bags`.
        unsafe {
            if SCALED {
                sum.add(vector.mul(V::splat(*self.0.order.factors.get_unchecked(term))))
            } else {
                sum.add(vector)
            }
        }
    }

    #[inline(always)]
    unsafe fn divisor(&self, _sum: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    unsafe fn target(&self, sum: usize) -> *mut f32 {
        // SAFETY: `out` has one gradient per row, or one for all rows.
        unsafe { self.0.out.add(if APART { sum * self.0.dim } else { 0 }) }
    }
}
