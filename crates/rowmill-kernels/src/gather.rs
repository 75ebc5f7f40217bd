//! Gather: copies of rows, side by side.

use crate::RowPtr;
use crate::arch::{InstructionSet, Kernel, Vector, prefetch};

/// How many rows ahead of the one being copied are prefetched; the same trade as for sums.
const PREFETCH_DISTANCE: usize = 16;

/// Copy the weights of `rows[i]` to `out[i * out_stride..][..dim]`.
///
/// # Panics
/// If `out` is too short.
///
/// # Safety
/// Every row has `dim` readable floats that nobody writes meanwhile.
pub unsafe fn gather(rows: &[RowPtr], dim: usize, out: &mut [f32], out_stride: usize) {
    // SAFETY: the caller's.
    unsafe { gather_with(InstructionSet::best(), rows, dim, out, out_stride) }
}

/// [`gather`] with a chosen instruction set.
///
/// # Panics
/// If `out` is too short.
///
/// # Safety
/// As for [`gather`].
pub unsafe fn gather_with(
    set: InstructionSet,
    rows: &[RowPtr],
    dim: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    assert!(rows.is_empty() || out.len() >= (rows.len() - 1) * out_stride + dim, "no room for every row");
    let gather = Gather { rows, dim, out: out.as_mut_ptr(), out_stride };
    // SAFETY: the caller's, and `out` has room.
    unsafe { set.run(gather) }
}

struct Gather<'a> {
    rows: &'a [RowPtr],
    dim: usize,
    out: *mut f32,
    out_stride: usize,
}

impl Kernel for Gather<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for &row in &self.rows[..self.rows.len().min(PREFETCH_DISTANCE)] {
            prefetch(row, 4 * self.dim);
        }
        for (i, &row) in self.rows.iter().enumerate() {
            if let Some(&ahead) = self.rows.get(i + PREFETCH_DISTANCE) {
                prefetch(ahead, 4 * self.dim);
            }
            // SAFETY: row and target have `dim` floats.
            unsafe { copy::<V>(row, self.out.add(i * self.out_stride), self.dim) };
        }
    }
}

#[inline(always)]
unsafe fn copy<V: Vector>(source: *const f32, target: *mut f32, dim: usize) {
    // SAFETY: the caller gives `dim` floats on both sides.
    unsafe {
        let mut column = 0;
        while column + V::LANES <= dim {
            V::load(source.add(column)).store(target.add(column));
            column += V::LANES;
        }
        if column < dim {
            V::load_first(source.add(column), dim - column).store_first(target.add(column), dim - column);
        }
    }
}
