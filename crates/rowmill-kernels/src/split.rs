//! 32-bit floats in two planes: the upper half of each is a bfloat16, rounded toward zero, the lower half what that
//! lacks (Kalamkar et al. 2020, "Optimizing Deep Learning Recommender Systems' Training on CPU Cluster
//! Architectures", Split-SGD-BF16). Together they are the float, bit for bit.

use crate::arch::{Bits, InstructionSet, Kernel, Vector};
use crate::bf16;

/// Split `values` into their upper and their lower halves.
///
/// # Panics
/// If they are not equally many.
pub fn split(values: &[f32], upper: &mut [u16], lower: &mut [u16]) {
    split_with(InstructionSet::best(), values, upper, lower);
}

/// [`split`] with a chosen instruction set.
///
/// # Panics
/// As for [`split`].
pub fn split_with(set: InstructionSet, values: &[f32], upper: &mut [u16], lower: &mut [u16]) {
    assert!(values.len() == upper.len() && values.len() == lower.len(), "two halves per float");
    // SAFETY: the kernel asks for slices of one length.
    unsafe { set.run(Split { values, upper, lower }) }
}

/// Put the floats together that [`split`] made these halves of.
///
/// # Panics
/// If they are not equally many.
pub fn join(upper: &[u16], lower: &[u16], out: &mut [f32]) {
    join_with(InstructionSet::best(), upper, lower, out);
}

/// [`join`] with a chosen instruction set.
///
/// # Panics
/// As for [`join`].
pub fn join_with(set: InstructionSet, upper: &[u16], lower: &[u16], out: &mut [f32]) {
    assert!(out.len() == upper.len() && out.len() == lower.len(), "two halves per float");
    // SAFETY: the kernel asks for slices of one length.
    unsafe { set.run(Join { upper, lower, out }) }
}

/// `w -= lr * g` on split floats, fused as in `torch.optim.SGD`; gradients are bfloat16.
///
/// # Panics
/// If there is not one gradient and one of either half per float.
pub fn split_sgd(upper: &mut [u16], lower: &mut [u16], gradient: &[u16], lr: f32) {
    split_sgd_with(InstructionSet::best(), upper, lower, gradient, lr);
}

/// [`split_sgd`] with a chosen instruction set.
///
/// # Panics
/// As for [`split_sgd`].
pub fn split_sgd_with(set: InstructionSet, upper: &mut [u16], lower: &mut [u16], gradient: &[u16], lr: f32) {
    assert!(upper.len() == lower.len() && upper.len() == gradient.len(), "two halves and a gradient each");
    // SAFETY: the kernel asks for slices of one length.
    unsafe { set.run(Sgd { upper, lower, gradient, lr }) }
}

/// Reads `count <= LANES` floats.
///
/// # Safety
/// Both their halves are readable; only called below [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn load_up_to<V: Vector>(upper: *const u16, lower: *const u16, count: usize) -> V {
    // SAFETY: the caller's.
    unsafe { V::from_bits(halves::<V>(upper, count).shift_left(16).add(halves::<V>(lower, count))) }
}

/// Writes the first `count <= LANES` floats.
///
/// # Safety
/// Both their halves are writable; only called below [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn store_up_to<V: Vector>(values: V, upper: *mut u16, lower: *mut u16, count: usize) {
    // SAFETY: the caller's.
    unsafe {
        let bits = values.to_bits();
        let halves = [(bits.shift_right(16), upper), (bits.shift_left(16).shift_right(16), lower)];
        for (halves, target) in halves {
            if count == V::LANES {
                halves.store_halves(target);
            } else {
                halves.store_halves_first(target, count);
            }
        }
    }
}

/// [`join`] of `count` floats.
///
/// # Safety
/// Their halves are readable, the floats writable; only called below [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn join_raw<V: Vector>(
    upper: *const u16,
    lower: *const u16,
    target: *mut f32,
    count: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut at = 0;
        while at + V::LANES <= count {
            load_up_to::<V>(upper.add(at), lower.add(at), V::LANES).store(target.add(at));
            at += V::LANES;
        }
        if at < count {
            let rest = count - at;
            load_up_to::<V>(upper.add(at), lower.add(at), rest).store_first(target.add(at), rest);
        }
    }
}

#[inline(always)]
unsafe fn halves<V: Vector>(source: *const u16, count: usize) -> V::Bits {
    // SAFETY: the caller's.
    unsafe {
        if count == V::LANES {
            V::Bits::load_halves(source)
        } else {
            V::Bits::load_halves_first(source, count)
        }
    }
}

struct Split<'a> {
    values: &'a [f32],
    upper: &'a mut [u16],
    lower: &'a mut [u16],
}

impl Kernel for Split<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (source, count) = (self.values.as_ptr(), self.values.len());
        let (upper, lower) = (self.upper.as_mut_ptr(), self.lower.as_mut_ptr());
        // SAFETY: the caller's; there are as many halves of either kind as floats.
        unsafe {
            let mut at = 0;
            while at < count {
                let step = V::LANES.min(count - at);
                store_up_to(V::load_up_to(source.add(at), step), upper.add(at), lower.add(at), step);
                at += step;
            }
        }
    }
}

struct Join<'a> {
    upper: &'a [u16],
    lower: &'a [u16],
    out: &'a mut [f32],
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (upper, lower) = (self.upper.as_ptr(), self.lower.as_ptr());
        // SAFETY: the caller's; there are as many halves of either kind as floats.
        unsafe { join_raw::<V>(upper, lower, self.out.as_mut_ptr(), self.out.len()) };
    }
}

struct Sgd<'a> {
    upper: &'a mut [u16],
    lower: &'a mut [u16],
    gradient: &'a [u16],
    lr: f32,
}

impl Kernel for Sgd<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (upper, lower) = (self.upper.as_mut_ptr(), self.lower.as_mut_ptr());
        let (gradient, count) = (self.gradient.as_ptr(), self.gradient.len());
        // SAFETY: the caller's; there is one of everything per float, and at most as many are taken as are left.
        unsafe {
            let rate = V::splat(-self.lr);
            let mut at = 0;
            // No closure: one that is not inlined would lack the instructions of this set.
            while at < count {
                let step = V::LANES.min(count - at);
                let g = bf16::load_up_to::<V>(gradient.add(at), step);
                let w = load_up_to::<V>(upper.add(at), lower.add(at), step);
                store_up_to(rate.mul_add(g, w), upper.add(at), lower.add(at), step);
                at += step;
            }
        }
    }
}
