//! Split floats: 32-bit floats in two planes. The upper 16 bits of each are a bfloat16, rounded toward zero;
//! the lower 16 bits are the rest (Kalamkar et al. 2020, "Optimizing Deep Learning Recommender Systems'
//! Training on CPU Cluster Architectures", Split-SGD-BF16). Together they give the float bit for bit.

use crate::arch::{Bits, InstructionSet, Kernel, Vector};
use crate::bf16;

/// Split `values` into upper and lower halves.
///
/// # Panics
/// If their lengths differ.
pub fn split(values: &[f32], upper: &mut [u16], lower: &mut [u16]) {
    split_with(InstructionSet::best(), values, upper, lower);
}

/// [`split`] with a chosen instruction set.
///
/// # Panics
/// As for [`split`].
pub fn split_with(set: InstructionSet, values: &[f32], upper: &mut [u16], lower: &mut [u16]) {
    assert!(values.len() == upper.len() && values.len() == lower.len(), "two halves per float");
    // SAFETY: the kernel requires slices of equal length, as asserted above.
    unsafe { set.run(Split { values, upper, lower }) }
}

/// Join halves made by [`split`] into floats.
///
/// # Panics
/// If their lengths differ.
pub fn join(upper: &[u16], lower: &[u16], out: &mut [f32]) {
    join_with(InstructionSet::best(), upper, lower, out);
}

/// [`join`] with a chosen instruction set.
///
/// # Panics
/// As for [`join`].
pub fn join_with(set: InstructionSet, upper: &[u16], lower: &[u16], out: &mut [f32]) {
    assert!(out.len() == upper.len() && out.len() == lower.len(), "two halves per float");
    // SAFETY: the kernel requires slices of equal length, as asserted above.
    unsafe { set.run(Join { upper, lower, out }) }
}

/// `w -= lr * g` on split floats, fused as in `torch.optim.SGD`. Gradients are bfloat16.
///
/// # Panics
/// If the lengths of halves and gradients differ.
pub fn split_sgd(upper: &mut [u16], lower: &mut [u16], gradient: &[u16], lr: f32) {
    split_sgd_with(InstructionSet::best(), upper, lower, gradient, lr);
}

/// [`split_sgd`] with a chosen instruction set.
///
/// # Panics
/// As for [`split_sgd`].
pub fn split_sgd_with(set: InstructionSet, upper: &mut [u16], lower: &mut [u16], gradient: &[u16], lr: f32) {
    assert!(
        upper.len() == lower.len() && upper.len() == gradient.len(),
        "upper, lower and gradient must have equal lengths"
    );
    // SAFETY: the kernel requires slices of equal length, as asserted above.
    unsafe { set.run(Sgd { upper, lower, gradient, lr }) }
}

/// Read `count <= LANES` floats.
///
/// # Safety
/// Their halves are readable. Only call this inside [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn load_up_to<V: Vector>(upper: *const u16, lower: *const u16, count: usize) -> V {
    // SAFETY: the caller upholds the contract.
    unsafe { V::from_bits(halves::<V>(upper, count).shift_left(16).add(halves::<V>(lower, count))) }
}

/// Write the first `count <= LANES` floats.
///
/// # Safety
/// Their halves are writable. Only call this inside [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn store_up_to<V: Vector>(values: V, upper: *mut u16, lower: *mut u16, count: usize) {
    // SAFETY: the caller upholds the contract.
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
/// Their halves are readable, and the floats writable. Only call this inside [`InstructionSet::run`].
#[inline(always)]
pub(crate) unsafe fn join_raw<V: Vector>(
    upper: *const u16,
    lower: *const u16,
    target: *mut f32,
    count: usize,
) {
    // SAFETY: the caller upholds the contract.
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
    // SAFETY: the caller upholds the contract.
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
        // SAFETY: the caller upholds the contract; all three slices have one entry per float.
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
        // SAFETY: the caller upholds the contract; all three slices have one entry per float.
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
        // SAFETY: the caller upholds the contract; all slices have one entry per float, and no more are taken
        // than are left.
        unsafe {
            let rate = V::splat(-self.lr);
            let mut at = 0;
            // Not a closure: if it were not inlined, it would lack the instructions of this set.
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
