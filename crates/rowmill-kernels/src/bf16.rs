//! bfloat16: the upper half of a 32-bit float, so that half the bytes have the same range and 8 significant bits.
//!
//! To widen is to put zeros behind. To narrow is to add something to the bits and cut the lower half off: half of
//! what is cut off rounds to the nearest, and a random number below it rounds up as often as the number is nearer
//! to what lies above. Either way a number that has nothing in its lower half stays what it is, infinities and
//! NaNs included; a NaN that has something there must not come, and no arithmetic makes one.

use crate::arch::{Bits, InstructionSet, Kernel, Vector};

/// Widen `weights` into `out`.
///
/// # Panics
/// If they are not equally many.
pub fn widen(weights: &[u16], out: &mut [f32]) {
    widen_with(InstructionSet::best(), weights, out);
}

/// [`widen`] with a chosen instruction set.
///
/// # Panics
/// As for [`widen`].
pub fn widen_with(set: InstructionSet, weights: &[u16], out: &mut [f32]) {
    assert_eq!(weights.len(), out.len(), "one float per weight");
    // SAFETY: the kernel asks for slices of one length.
    unsafe { set.run(Widen { weights, out }) }
}

/// Round `values`, finite ones, to the nearest bfloat16 (ties to even): `weights`. What lies beyond the largest
/// one becomes infinite.
///
/// # Panics
/// If they are not equally many.
pub fn narrow(values: &[f32], weights: &mut [u16]) {
    narrow_with(InstructionSet::best(), values, weights);
}

/// [`narrow`] with a chosen instruction set.
///
/// # Panics
/// As for [`narrow`].
pub fn narrow_with(set: InstructionSet, values: &[f32], weights: &mut [u16]) {
    assert_eq!(weights.len(), values.len(), "one weight per float");
    // SAFETY: the kernel asks for slices of one length.
    unsafe { set.run(Narrow { values, weights }) }
}

/// Round `values`, finite ones, in place: what [`widen`] makes of what [`narrow`] makes of them.
pub(crate) fn round(set: InstructionSet, values: &mut [f32]) {
    // SAFETY: the kernel asks for nothing.
    unsafe { set.run(Round(values)) }
}

/// Reads `count <= LANES` of them, widened.
///
/// # Safety
/// They are readable; only called below [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn load_up_to<V: Vector>(source: *const u16, count: usize) -> V {
    // SAFETY: the caller's.
    unsafe {
        let halves = if count == V::LANES {
            V::Bits::load_halves(source)
        } else {
            V::Bits::load_halves_first(source, count)
        };
        V::from_bits(halves.shift_left(16))
    }
}

/// Writes the first `count <= LANES` floats, `added` to their bits before the lower halves are cut off.
///
/// # Safety
/// They are writable; only called below [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn store_up_to<V: Vector>(values: V, added: V::Bits, target: *mut u16, count: usize) {
    // SAFETY: the caller's.
    unsafe {
        let halves = values.to_bits().add(added).shift_right(16);
        if count == V::LANES {
            halves.store_halves(target);
        } else {
            halves.store_halves_first(target, count);
        }
    }
}

/// What is added to round to the nearest: a little less than half, and the last bit that stays, so that ties go
/// to even.
///
/// # Safety
/// Only called below [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn half<V: Vector>(values: V) -> V::Bits {
    // SAFETY: the caller's.
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
        // SAFETY: the caller's; there are as many weights as floats.
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
        // SAFETY: the caller's; there are as many weights as floats.
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
            // SAFETY: the caller's; a chunk has at most as many floats as a vector, and that is at most 16.
            unsafe {
                let (target, count) = (values.as_mut_ptr(), values.len());
                let values = V::load_up_to(target, count);
                store_up_to(values, half(values), halves.as_mut_ptr(), count);
                load_up_to::<V>(halves.as_ptr(), count).store_up_to(target, count);
            }
        }
    }
}
