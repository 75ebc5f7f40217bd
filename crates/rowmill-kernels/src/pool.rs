//! Pool: the forward of an embedding bag, from rows where they lie to one vector per bag.

use std::marker::PhantomData;
use std::ops::Range;

use rowmill_rows::{Dtype, Pooling};

use crate::arch::{InstructionSet, Kernel, Vector};
use crate::float::Float;
use crate::sums::{Sums, sum_all};
use crate::weights::{Bf16, Element, F32};
use crate::{Lookups, RowPtr, SKIP};

/// Bag `b` of `lookups` becomes the sum (or mean) of its rows at `out + b * out_stride`, rounded to the nearest number of
/// the type `T`.
///
/// Weights are widened to 32-bit floats as they are read; of split ones the lower halves are not. Rows are added in lookup order, weights by a fused
/// multiply-add, a mean is the sum divided by the number of lookups that are not padding: bit for bit what
/// `torch.nn.EmbeddingBag` computes on a CPU.
/// Empty bags become 0.
///
/// # Safety
/// Every index in `lookups.inverse` is [`SKIP`] or below `rows.len()`; rows looked up have `dim` readable
/// weights of type `dtype` that nobody writes meanwhile; the offsets do not decrease; `out` has `dim` writable numbers at
/// every `b * out_stride`, apart from the rows.
pub unsafe fn pool<T: Float>(
    rows: &[RowPtr],
    lookups: &Lookups<'_>,
    dtype: Dtype,
    dim: usize,
    out: *mut T,
    out_stride: usize,
) {
    // SAFETY: the caller's.
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
    let lookups = *lookups;
    // SAFETY: the caller's.
    unsafe {
        match dtype {
            Dtype::F32 => {
                set.run(Pool::<F32, T> { rows, lookups, dim, out, out_stride, element: PhantomData });
            }
            // Of split weights the upper halves, which lie first.
            Dtype::Bf16 | Dtype::SplitBf16 => {
                set.run(Pool::<Bf16, T> { rows, lookups, dim, out, out_stride, element: PhantomData });
            }
        }
    }
}

struct Pool<'a, E, T> {
    rows: &'a [RowPtr],
    lookups: Lookups<'a>,
    dim: usize,
    out: *mut T,
    out_stride: usize,
    element: PhantomData<E>,
}

impl<E: Element, T: Float> Kernel for Pool<'_, E, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller's.
        unsafe {
            match (self.lookups.weights, self.lookups.pooling) {
                (None, Pooling::Sum) => sum_all::<V, _>(&Bags::<E, T, false, false>(&self, &[]), self.dim),
                (None, Pooling::Mean) => sum_all::<V, _>(&Bags::<E, T, false, true>(&self, &[]), self.dim),
                (Some(weights), _) => sum_all::<V, _>(&Bags::<E, T, true, false>(&self, weights), self.dim),
            }
        }
    }
}

/// One sum per bag, one term per lookup; the slice holds the weights, if any.
struct Bags<'a, E, T, const WEIGHTED: bool, const MEAN: bool>(&'a Pool<'a, E, T>, &'a [f32]);

impl<E: Element, T: Float, const WEIGHTED: bool, const MEAN: bool> Sums for Bags<'_, E, T, WEIGHTED, MEAN> {
    const DIVIDE: bool = MEAN;
    const WHOLE: bool = false;
    type Element = E;
    type Target = T;

    #[inline(always)]
    fn len(&self) -> usize {
        self.0.lookups.bags()
    }

    #[inline(always)]
    unsafe fn terms(&self, sum: usize) -> Range<usize> {
        let offsets = self.0.lookups.offsets;
        // SAFETY: `sum` is below `len`, and there is one offset more.
        unsafe { *offsets.get_unchecked(sum) as usize..*offsets.get_unchecked(sum + 1) as usize }
    }

    #[inline(always)]
    unsafe fn term(&self, term: usize) -> *const f32 {
        // SAFETY: offsets lie inside the lookups, indices inside the rows.
        unsafe {
            let unique = *self.0.lookups.inverse.get_unchecked(term);
            if unique == SKIP { std::ptr::null() } else { *self.0.rows.get_unchecked(unique as usize) }
        }
    }

    #[inline(always)]
    unsafe fn add<V: Vector>(&self, sum: V, vector: V, term: usize) -> V {
        // SAFETY: the caller's; there is one weight per lookup.
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
        self.0.lookups.count(sum).max(1) as f32
    }

    #[inline(always)]
    unsafe fn target(&self, sum: usize) -> *mut T {
        // SAFETY: the caller gives room at every bag's place.
        unsafe { self.0.out.add(sum * self.0.out_stride) }
    }
}
