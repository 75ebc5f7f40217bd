//! Many sums of vectors, each held in registers. Pooling (rows into bags) and its transpose (gradients of
//! bags into gradients of rows) share this code.

use std::ops::{Range, RangeInclusive};
use std::ptr::NonNull;

use crate::arch::{Vector, prefetch};
use crate::float::Float;
use crate::weights::Element;

/// Bytes of terms to prefetch ahead of the term being added. With 64-byte terms (one cache line each), a sum
/// of 20 terms took 7.8 ns per term at 1 KiB, 6.2 ns at 2 KiB, and 5.5 ns from 3 KiB on.
const PREFETCH_BYTES: usize = 3072;
/// Bounds of the prefetch distance in terms. With 512-byte terms, 16 terms still fit the L1 cache.
const DISTANCE: RangeInclusive<usize> = 16..=48;

/// How many vectors of `bytes` ahead to prefetch.
#[inline(always)]
pub(crate) fn prefetch_distance(bytes: usize) -> usize {
    (PREFETCH_BYTES / bytes.max(1)).clamp(*DISTANCE.start(), *DISTANCE.end())
}

/// A list of sums over one list of terms.
pub(crate) trait Sums {
    /// Whether each sum is divided by [`Sums::divisor`].
    const DIVIDE: bool;
    /// Whether a target has room for whole vectors; elements after the sum become 0. A store of part of a
    /// vector would not be forwarded to the load that follows it.
    const WHOLE: bool;
    /// Type of the terms' elements.
    type Element: Element;
    /// Type that the sums are written as.
    type Target: Float;

    /// Number of sums.
    fn len(&self) -> usize;
    /// The terms of sum `sum`.
    unsafe fn terms(&self, sum: usize) -> Range<usize>;
    /// Address of term `term`; none for a term to skip.
    unsafe fn term(&self, term: usize) -> Option<NonNull<f32>>;
    /// Address to prefetch for term `term`, which may be any.
    #[inline(always)]
    unsafe fn ahead(&self, term: usize) -> Option<*const f32> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.term(term).map(|vector| vector.as_ptr().cast_const()) }
    }
    /// `sum + factor * vector`, with the factor and the rounding of term `term`.
    unsafe fn add<V: Vector>(&self, sum: V, vector: V, term: usize) -> V;
    /// Divisor of the sum.
    unsafe fn divisor(&self, sum: usize) -> f32;
    /// Address to write the sum to.
    unsafe fn target(&self, sum: usize) -> *mut Self::Target;
}

/// Compute all sums of vectors of `dim` elements.
///
/// # Safety
/// All terms are null or point to `dim` readable elements. All targets point to `dim` writable numbers.
/// Ranges of terms ascend.
#[inline(always)]
pub(crate) unsafe fn sum_all<V: Vector, S: Sums>(sums: &S, dim: usize) {
    if sums.len() == 0 || dim == 0 {
        return;
    }
    // SAFETY: the caller upholds the contract; each width is used only for that `dim`.
    unsafe {
        let first = sums.terms(0).start;
        let end = sums.terms(sums.len() - 1).end;
        let distance = prefetch_distance(S::Element::BYTES * dim);
        for term in first..end.min(first + distance) {
            prefetch_term(sums, term, dim);
        }
        // The usual widths have loops of their own, without a branch per bag.
        if dim == 8 * V::LANES {
            one_block::<V, S, 8>(sums, end, distance);
        } else if dim == 4 * V::LANES {
            one_block::<V, S, 4>(sums, end, distance);
        } else if dim == 2 * V::LANES {
            one_block::<V, S, 2>(sums, end, distance);
        } else if dim == V::LANES {
            one_block::<V, S, 1>(sums, end, distance);
        } else {
            any_width::<V, S>(sums, end, distance, dim);
        }
    }
}

#[inline(always)]
unsafe fn prefetch_term<S: Sums>(sums: &S, term: usize, dim: usize) {
    // SAFETY: the caller upholds the contract.
    if let Some(vector) = unsafe { sums.ahead(term) } {
        prefetch(vector, S::Element::BYTES * dim);
    }
}

#[inline(always)]
unsafe fn one_block<V: Vector, S: Sums, const N: usize>(sums: &S, end: usize, distance: usize) {
    for sum in 0..sums.len() {
        // SAFETY: the caller upholds the contract.
        unsafe { block::<V, S, N, true>(sums, sum, end, distance, 0, N * V::LANES) };
    }
}

/// Vectors of any width: blocks of 8, 4, 2 and 1 registers, then the tail. Only the first block prefetches,
/// for the whole vector.
#[inline(always)]
unsafe fn any_width<V: Vector, S: Sums>(sums: &S, end: usize, distance: usize, dim: usize) {
    for sum in 0..sums.len() {
        // SAFETY: the caller upholds the contract.
        unsafe { blocks::<V, S>(sums, sum, end, distance, dim) };
    }
}

/// Compute one sum of vectors of `dim` elements, without prefetching its terms.
///
/// # Safety
/// All terms of the sum are null or point to `dim` readable elements. Its target points to `dim` writable
/// numbers.
#[inline(always)]
pub(crate) unsafe fn sum_one<V: Vector, S: Sums>(sums: &S, sum: usize, dim: usize) {
    // SAFETY: the caller upholds the contract; with an end of 0, no term is prefetched.
    unsafe { blocks::<V, S>(sums, sum, 0, 0, dim) };
}

#[inline(always)]
unsafe fn blocks<V: Vector, S: Sums>(sums: &S, sum: usize, end: usize, distance: usize, dim: usize) {
    // SAFETY: the caller upholds the contract; each block fits the remaining columns.
    unsafe {
        let mut column = 0;
        while dim - column >= 8 * V::LANES {
            if column == 0 {
                block::<V, S, 8, true>(sums, sum, end, distance, column, dim);
            } else {
                block::<V, S, 8, false>(sums, sum, end, distance, column, dim);
            }
            column += 8 * V::LANES;
        }
        if column == 0 {
            prefetch_ahead(sums, sum, end, distance, dim);
        }
        if dim - column >= 4 * V::LANES {
            block::<V, S, 4, false>(sums, sum, end, distance, column, dim);
            column += 4 * V::LANES;
        }
        if dim - column >= 2 * V::LANES {
            block::<V, S, 2, false>(sums, sum, end, distance, column, dim);
            column += 2 * V::LANES;
        }
        if dim - column >= V::LANES {
            block::<V, S, 1, false>(sums, sum, end, distance, column, dim);
            column += V::LANES;
        }
        if column < dim {
            tail::<V, S>(sums, sum, column, dim - column);
        }
    }
}

/// For every term of `sum`, prefetch the term `distance` terms later.
#[inline(always)]
unsafe fn prefetch_ahead<S: Sums>(sums: &S, sum: usize, end: usize, distance: usize, dim: usize) {
    // SAFETY: the caller upholds the contract; terms before `end` exist.
    unsafe {
        for term in sums.terms(sum) {
            if term + distance < end {
                prefetch_term(sums, term + distance, dim);
            }
        }
    }
}

/// Columns `column..column + N * LANES` of one sum, in `N` registers.
#[inline(always)]
unsafe fn block<V: Vector, S: Sums, const N: usize, const PREFETCH: bool>(
    sums: &S,
    sum: usize,
    end: usize,
    distance: usize,
    column: usize,
    dim: usize,
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let mut registers = [V::splat(0.0); N];
        for term in sums.terms(sum) {
            if PREFETCH && term + distance < end {
                prefetch_term(sums, term + distance, dim);
            }
            let Some(vector) = sums.term(term) else { continue };
            let vector = vector.as_ptr();
            for (n, register) in registers.iter_mut().enumerate() {
                let weights = S::Element::load_up_to(vector, column + n * V::LANES, V::LANES);
                *register = sums.add(*register, weights, term);
            }
        }
        if S::DIVIDE {
            let divisor = V::splat(sums.divisor(sum));
            for register in &mut registers {
                *register = register.div(divisor);
            }
        }
        let target = sums.target(sum).add(column);
        for (n, register) in registers.into_iter().enumerate() {
            S::Target::store_up_to(register, target.add(n * V::LANES), V::LANES);
        }
    }
}

/// The last `count < LANES` columns of one sum.
#[inline(always)]
unsafe fn tail<V: Vector, S: Sums>(sums: &S, sum: usize, column: usize, count: usize) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let mut register = V::splat(0.0);
        for term in sums.terms(sum) {
            if let Some(vector) = sums.term(term) {
                register = sums.add(register, S::Element::load_up_to(vector.as_ptr(), column, count), term);
            }
        }
        if S::DIVIDE {
            register = register.div(V::splat(sums.divisor(sum)));
        }
        let target = sums.target(sum).add(column);
        S::Target::store_up_to(register, target, if S::WHOLE { V::LANES } else { count });
    }
}
