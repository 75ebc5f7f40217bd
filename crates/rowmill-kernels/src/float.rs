//! Number types of slices that kernels read and write as vectors of 32-bit floats.

#![allow(private_bounds, reason = "only kernels call the methods, so no other crate can implement it")]

use crate::arch::Vector;
use crate::bf16;

/// `f32`, or `u16` for the bits of a bfloat16. Values written as bfloat16 are rounded.
pub trait Float: Copy {
    /// The number as a 32-bit float.
    fn widen(self) -> f32;

    /// The same numbers, where they are 32-bit floats.
    fn as_f32(numbers: &[Self]) -> Option<&[f32]>
    where
        Self: Sized;

    /// Read `count <= LANES` numbers. Has no branches if `count` is known to be `LANES`.
    ///
    /// # Safety
    /// They are readable. Only call this inside [`InstructionSet::run`](crate::InstructionSet).
    unsafe fn load_up_to<V: Vector>(source: *const Self, count: usize) -> V;

    /// Write the first `count <= LANES` numbers. Has no branches if `count` is known to be `LANES`.
    ///
    /// # Safety
    /// They are writable. Only call this inside [`InstructionSet::run`](crate::InstructionSet).
    unsafe fn store_up_to<V: Vector>(values: V, target: *mut Self, count: usize);
}

impl Float for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn as_f32(numbers: &[Self]) -> Option<&[f32]> {
        Some(numbers)
    }

    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(source: *const Self, count: usize) -> V {
        // SAFETY: the caller upholds the contract.
        unsafe { V::load_up_to(source, count) }
    }

    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(values: V, target: *mut Self, count: usize) {
        // SAFETY: the caller upholds the contract.
        unsafe { values.store_up_to(target, count) }
    }
}

impl Float for u16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }

    #[inline(always)]
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(source: *const Self, count: usize) -> V {
        // SAFETY: the caller upholds the contract.
        unsafe { bf16::load_up_to(source, count) }
    }

    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(values: V, target: *mut Self, count: usize) {
        // SAFETY: the caller upholds the contract.
        unsafe { bf16::store_up_to(values, bf16::half(values), target, count) }
    }
}
