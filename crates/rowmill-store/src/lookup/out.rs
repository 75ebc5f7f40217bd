//! Memory that pooled vectors are written to, of either type of float.
#![allow(private_interfaces, reason = "what `Pooled` gives is for the lookups of this crate")]

use std::ops::Range;

use rowmill_kernels::{Lookups, RowArray, RowPtr, pool, pool_array};
use rowmill_rows::{IdBag, RowLayout};

/// A float that pooled vectors may be made of: `f32`, or `u16` for the bits of a bfloat16, to which they are rounded.
pub trait Pooled: Copy {
    /// The place of the first.
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

/// A place among the floats of a caller who waits for them, and for all behind it.
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
    /// The place so many floats behind.
    ///
    /// # Safety
    /// It lies among the caller's floats.
    pub(crate) unsafe fn add(self, floats: usize) -> Self {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::F32(out) => Self::F32(out.add(floats)),
                Self::Bf16(out) => Self::Bf16(out.add(floats)),
            }
        }
    }

    /// Pool bags to this place and those behind it.
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
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::F32(out) => pool(rows, lookups, dtype, dim, out, row_stride),
                Self::Bf16(out) => pool(rows, lookups, dtype, dim, out, row_stride),
            }
        }
    }

    /// Pool some bags of rows that lie as in an array to this place and those behind it.
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
    ) {
        let &RowLayout { dim, dtype, .. } = layout;
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::F32(out) => pool_array(array, bag, bags, dtype, dim, out, row_stride),
                Self::Bf16(out) => pool_array(array, bag, bags, dtype, dim, out, row_stride),
            }
        }
    }
}
