//! Output memory for pooled vectors, as 32-bit floats or bfloat16.
#![allow(private_interfaces, reason = "only lookups of this crate call `Pooled::out`")]

use std::ops::Range;

use rowmill_kernels::{Lookups, RowArray, RowBags, RowPtr, pool, pool_array, pool_rows};
use rowmill_rows::{IdBag, RowLayout};

/// Element type of pooled vectors: `f32`, or `u16` for the bits of bfloat16, to which sums are rounded.
pub trait Pooled: Copy {
    /// A pointer to the first element of `out`.
    fn out(out: &mut [Self]) -> Out;
}

impl Pooled for f32 {
    fn out(out: &mut [Self]) -> Out {
        Out::F32(out.as_mut_ptr())
    }
}

impl Pooled for u16 {
    fn out(out: &mut [Self]) -> Out {
        Out::Bf16(out.as_mut_ptr())
    }
}

/// A pointer into the output of a caller, who waits until all floats are written.
#[derive(Clone, Copy)]
pub(crate) enum Out {
    F32(*mut f32),
    Bf16(*mut u16),
}

// SAFETY: the tasks that share it write disjoint floats.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

impl Out {
    /// The pointer advanced by `floats`.
    ///
    /// # Safety
    /// The result lies within the caller's output.
    pub(crate) unsafe fn add(self, floats: usize) -> Self {
        // SAFETY: by the contract of this function.
        unsafe {
            match self {
                Self::F32(out) => Self::F32(out.add(floats)),
                Self::Bf16(out) => Self::Bf16(out.add(floats)),
            }
        }
    }

    /// Pool bags to the memory from this pointer on.
    ///
    /// # Safety
    /// As for [`pool`].
    pub(crate) unsafe fn pool(
        self,
        rows: &[RowPtr],
        lookups: &Lookups<'_>,
        layout: &RowLayout,
        row_stride: usize,
    ) {
        let &RowLayout { dim, dtype, .. } = layout;
        // SAFETY: by the contract of this function.
        unsafe {
            match self {
                Self::F32(out) => pool(rows, lookups, dtype, dim, out, row_stride),
                Self::Bf16(out) => pool(rows, lookups, dtype, dim, out, row_stride),
            }
        }
    }

    /// Pool bags of rows to the memory from this pointer on.
    ///
    /// # Safety
    /// As for [`pool_rows`].
    pub(crate) unsafe fn pool_rows(self, bags: &RowBags<'_>, layout: &RowLayout, row_stride: usize) {
        let &RowLayout { dim, dtype, .. } = layout;
        // SAFETY: by the contract of this function.
        unsafe {
            match self {
                Self::F32(out) => pool_rows(bags, dtype, dim, out, row_stride),
                Self::Bf16(out) => pool_rows(bags, dtype, dim, out, row_stride),
            }
        }
    }

    /// Pool some bags of rows that lie as in an array, to the memory from this pointer on. Returns whether the array has
    /// all rows.
    ///
    /// # Safety
    /// As for [`pool_array`].
    pub(crate) unsafe fn pool_array(
        self,
        array: &RowArray<'_>,
        bag: &IdBag<'_>,
        bags: Range<usize>,
        layout: &RowLayout,
        row_stride: usize,
    ) -> bool {
        let &RowLayout { dim, dtype, .. } = layout;
        // SAFETY: by the contract of this function.
        unsafe {
            match self {
                Self::F32(out) => pool_array(array, bag, bags, dtype, dim, out, row_stride),
                Self::Bf16(out) => pool_array(array, bag, bags, dtype, dim, out, row_stride),
            }
        }
    }
}
