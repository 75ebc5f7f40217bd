//! bfloat16: the upper 16 bits of a 32-bit float, with the same range and 8 significant bits.
//!
//! Widening appends 16 zero bits. Narrowing adds a number to the bits and drops the lower 16 bits. Adding
//! half a unit rounds to nearest; adding a random number rounds up with a probability equal to the dropped
//! fraction. In both cases, a value whose lower 16 bits are zero stays unchanged, including infinities and
//! NaNs. A NaN with other lower bits is not a valid input; no arithmetic produces one.

use crate::arch::{Bits, InstructionSet, Kernel, Vector};

/// Widen `weights` to 32-bit floats in `out`.
///
/// # Panics
/// If their lengths differ.
pub fn widen(weights: &[u16], out: &mut [f32]) {
    widen_with(InstructionSet::best(), weights, out);
}

/// [`widen`] with a chosen instruction set.
///
/// # Panics
/// As for [`widen`].
pub fn widen_with(set: InstructionSet, weights: &[u16], out: &mut [f32]) {
    assert_eq!(weights.len(), out.len(), "one float per weight");
    // SAFETY: the kernel requires slices of equal length, as asserted above.
    unsafe { set.run(Widen { weights, out }) }
}

/// Round finite `values` to the nearest bfloat16 (ties to even) in `weights`. Values beyond the largest
/// bfloat16 become infinite.
///
/// # Panics
/// If their lengths differ.
pub fn narrow(values: &[f32], weights: &mut [u16]) {
    narrow_with(InstructionSet::best(), values, weights);
}

/// [`narrow`] with a chosen instruction set.
///
/// # Panics
/// As for [`narrow`].
pub fn narrow_with(set: InstructionSet, values: &[f32], weights: &mut [u16]) {
    assert_eq!(weights.len(), values.len(), "one weight per float");
    // SAFETY: the kernel requires slices of equal length, as asserted above.
    unsafe { set.run(Narrow { values, weights }) }
}

/// Round finite `values` in place to the nearest bfloat16, kept as 32-bit floats.
pub(crate) fn round(set: InstructionSet, values: &mut [f32]) {
    // SAFETY: the kernel has no requirements.
    unsafe { set.run(Round(values)) }
}

/// Read `count <= LANES` numbers, widened.
///
/// # Safety
/// They are readable. Only call this inside [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn load_up_to<V: Vector>(source: *const u16, count: usize) -> V {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let halves = if count == V::LANES {
            V::Bits::load_halves(source)
        } else {
            V::Bits::load_halves_first(source, count)
        };
        V::from_bits(halves.shift_left(16))
    }
}

/// Write the first `count <= LANES` floats, after adding `added` to their bits and dropping the lower 16
/// bits.
///
/// # Safety
/// They are writable. Only call this inside [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn store_up_to<V: Vector>(values: V, added: V::Bits, target: *mut u16, count: usize) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let halves = values.to_bits().add(added).shift_right(16);
        if count == V::LANES {
            halves.store_halves(target);
        } else {
            halves.store_halves_first(target, count);
        }
    }
}

/// The number to add for rounding to nearest: slightly less than half, plus the last kept bit, so that ties
/// go to even.
///
/// # Safety
/// Only call this inside [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn half<V: Vector>(values: V) -> V::Bits {
    // SAFETY: the caller upholds the contract.
    unsafe { values.to_bits().shift_left(15).shift_right(31).add(V::Bits::splat(0x7fff)) }
}

struct Widen<'a> {
    weights: &'a [u16],
    out: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (source, target, count) = (self.weights.as_ptr(), self.out.as_mut_ptr(), self.out.len());
        // SAFETY: the caller upholds the contract; there are as many weights as floats.
        unsafe {
            let mut at = 0;
            while at + V::LANES <= count {
                load_up_to::<V>(source.add(at), V::LANES).store(target.add(at));
                at += V::LANES;
            }
            if at < count {
                load_up_to::<V>(source.add(at), count - at).store_first(target.add(at), count - at);
            }
        }
    }
}

struct Narrow<'a> {
    values: &'a [f32],
    weights: &'a mut [u16],
}

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (source, target, count) = (self.values.as_ptr(), self.weights.as_mut_ptr(), self.weights.len());
        // SAFETY: the caller upholds the contract; there are as many weights as floats.
        unsafe {
            let mut at = 0;
            while at < count {
                let step = V::LANES.min(count - at);
                let values = V::load_up_to(source.add(at), step);
                store_up_to(values, half(values), target.add(at), step);
                at += step;
            }
        }
    }
}

struct Round<'a>(&'a mut [f32]);

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let mut halves = [0; 16];
        for values in self.0.chunks_mut(V::LANES) {
            // SAFETY: the caller upholds the contract; a chunk has at most `LANES` floats, which is at most
            // 16.
            unsafe {
                let (target, count) = (values.as_mut_ptr(), values.len());
                let values = V::load_up_to(target, count);
                store_up_to(values, half(values), halves.as_mut_ptr(), count);
                load_up_to::<V>(halves.as_ptr(), count).store_up_to(target, count);
            }
        }
    }
}
