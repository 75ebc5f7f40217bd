//! Accumulate: the backward of an embedding bag, from gradients of bags to gradients of unique rows.

use std::ops::Range;

use rowmill_rows::Pooling;

use crate::arch::{InstructionSet, Kernel, Vector};
use crate::sums::{Sums, sum_all, sum_one};
use crate::weights::F32;
use crate::{Lookups, SKIP};

/// Lookups sorted by unique row: for each row the bags that looked it up, in lookup order.
///
/// Built once per step by a counting sort; ranges of unique rows can then be accumulated by different
/// threads. The buffers are kept from step to step.
#[derive(Clone, Debug, Default)]
pub struct LookupOrder {
    /// Row `u` was looked up by `bags[starts[u]..starts[u + 1]]`; one entry more while building.
    starts: Vec<u32>,
    /// The bag of each lookup.
    bags: Vec<u32>,
    /// What the bag's gradient is multiplied with; empty for plain sums.
    factors: Vec<f32>,
}

impl LookupOrder {
    /// Sort `lookups`, whose indices are below `unique`.
    ///
    /// # Panics
    /// If an index is neither [`SKIP`] nor below `unique`, or offsets do not fit the lookups.
    pub fn build(&mut self, lookups: &Lookups<'_>, unique: usize) {
        lookups.assert_shape();
        let Lookups { inverse, offsets, weights, pooling } = *lookups;
        assert!(inverse.len() < SKIP as usize, "too many lookups for 32-bit positions");
        let begin = offsets.first().map_or(0, |&offset| offset as usize);
        let end = offsets.last().map_or(0, |&offset| offset as usize);

        // Counts two places behind their row turn into starts one place behind it, which then serve as
        // cursors and end up as the starts of the next row.
        self.starts.clear();
        self.starts.resize(unique + 2, 0);
        // Slices of their own: through `self` every store makes the compiler load the pointers again.
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

        // Every entry is written below, so what a batch before left there may stay.
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

    /// Lookups of the unique rows in `range`, padding left out: what a split between threads balances.
    ///
    /// # Panics
    /// If the range does not lie inside the unique rows.
    pub fn lookups(&self, range: Range<usize>) -> usize {
        if range.is_empty() { 0 } else { (self.starts[range.end] - self.starts[range.start]) as usize }
    }

    /// The first bag that looked a unique row up, if any did.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn first_bag(&self, unique: u32) -> Option<u32> {
        let (begin, end) = (self.starts[unique as usize], self.starts[unique as usize + 1]);
        (begin < end).then(|| self.bags[begin as usize])
    }

    /// Bytes the buffers hold.
    pub fn bytes(&self) -> usize {
        4 * (self.starts.capacity() + self.bags.capacity() + self.factors.capacity())
    }
}

/// The gradient of unique row `range.start + i` at `out[i * dim..][..dim]`: the sum over its lookups of
/// the bag's gradient at `gradients + bag * stride`, times the lookup's weight, or divided by the bag's
/// count for a mean.
///
/// Terms are added in lookup order after being rounded, as `torch` adds up a sparse gradient. Bags count
/// from the first offset the order was built with.
///
/// # Panics
/// If `out` is not `range.len() * dim` floats or the range does not lie inside the unique rows.
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
    // SAFETY: the caller's.
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
    // SAFETY: the caller's, and `out` has room.
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
    /// The arguments of [`accumulate_range`], checked as far as they can be.
    #[inline(always)]
    pub(crate) fn new(
        order: &'a LookupOrder,
        range: Range<usize>,
        gradients: *const f32,
        stride: usize,
        dim: usize,
        out: *mut f32,
    ) -> Self {
        assert!(range.start <= range.end && range.end <= order.unique(), "a range outside the unique rows");
        let starts = if range.is_empty() { &[][..] } else { &order.starts[range.start..=range.end] };
        Self { order, starts, gradients, stride, dim, out }
    }
}

impl Kernel for Accumulate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller's; factors exist where they are asked for.
        unsafe {
            if self.order.factors.is_empty() {
                sum_all::<V, _>(&Rows::<false, true>(&self), self.dim);
            } else {
                sum_all::<V, _>(&Rows::<true, true>(&self), self.dim);
            }
        }
    }
}

/// The sums of unique rows wherever they stand in the order, one at a time, each to the same place.
pub(crate) struct Scattered<'a> {
    accumulate: Accumulate<'a>,
}

impl<'a> Scattered<'a> {
    /// `out` has room for `dim` floats in whole vectors; every bag has as many at `gradients + bag * stride`.
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
    /// As for [`accumulate_range`], and the row is one of the order.
    #[inline(always)]
    pub(crate) unsafe fn sum<V: Vector>(&self, row: usize) {
        // SAFETY: the caller's.
        unsafe {
            if self.accumulate.order.factors.is_empty() {
                sum_one::<V, _>(&Rows::<false, false>(&self.accumulate), row, self.accumulate.dim);
            } else {
                sum_one::<V, _>(&Rows::<true, false>(&self.accumulate), row, self.accumulate.dim);
            }
        }
    }
}

/// One sum per unique row, one term per lookup; each at a place of its own, or all at one.
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
        // SAFETY: `sum` is below `len`, and there is one start more.
        unsafe { *self.0.starts.get_unchecked(sum) as usize..*self.0.starts.get_unchecked(sum + 1) as usize }
    }

    #[inline(always)]
    unsafe fn term(&self, term: usize) -> *const f32 {
        // SAFETY: starts lie inside `bags`, and every bag has a gradient.
        unsafe { self.0.gradients.add(*self.0.order.bags.get_unchecked(term) as usize * self.0.stride) }
    }

    #[inline(always)]
    unsafe fn add<V: Vector>(&self, sum: V, vector: V, term: usize) -> V {
        // SAFETY: the caller's; there is one factor per bag entry.
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
        // SAFETY: `out` has one gradient per row, or one in all.
        unsafe { self.0.out.add(if APART { sum * self.0.dim } else { 0 }) }
    }
}
