//! Gather: copy the weights of rows into one array.

use std::marker::PhantomData;

use rowmill_rows::Dtype;

use crate::arch::{InstructionSet, Kernel, Vector, prefetch};
use crate::sums::prefetch_distance;
use crate::weights::{Bf16, Element, F32};
use crate::{RowPtr, split};

/// Copy the weights of `rows[i]` to `out[i * out_stride..][..dim]`, as 32-bit floats.
///
/// # Panics
/// If `out` is too short.
///
/// # Safety
/// Every row has `dim` readable weights of type `dtype` that no other thread writes meanwhile.
pub unsafe fn gather(rows: &[RowPtr], dtype: Dtype, dim: usize, out: &mut [f32], out_stride: usize) {
    // SAFETY: the caller upholds the contract.
    unsafe { gather_with(InstructionSet::best(), rows, dtype, dim, out, out_stride) }
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
    dtype: Dtype,
    dim: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let needed = match rows.len() {
        0 => Some(0),
        rows => (rows - 1).checked_mul(out_stride).and_then(|last| last.checked_add(dim)),
    };
    assert!(
        needed.is_some_and(|needed| out.len() >= needed),
        "out has no room for every row, {out_stride} floats apart"
    );
    // The state of an optimizer may have no floats.
    if dim == 0 {
        return;
    }
    let out = out.as_mut_ptr();
    // SAFETY: the caller upholds the contract, and `out` has room.
    unsafe {
        match dtype {
            Dtype::F32 => set.run(Gather::<F32> { rows, dim, out, out_stride, element: PhantomData }),
            Dtype::Bf16 => set.run(Gather::<Bf16> { rows, dim, out, out_stride, element: PhantomData }),
            Dtype::SplitBf16 => {
                set.run(Gather::<SplitBf16> { rows, dim, out, out_stride, element: PhantomData });
            }
        }
    }
}

struct Gather<'a, E> {
    rows: &'a [RowPtr],
    dim: usize,
    out: *mut f32,
    out_stride: usize,
    element: PhantomData<E>,
}

/// A storage format of weights, for kernels that read all their bits.
trait Copied {
    /// Bytes of one weight.
    const BYTES: usize;

    /// Copy the weights of a row.
    ///
    /// # Safety
    /// `source` has `dim` weights, and `target` has room for `dim` floats. Only call this inside
    /// [`InstructionSet::run`].
    unsafe fn copy<V: Vector>(source: RowPtr, target: *mut f32, dim: usize);
}

impl<E: Copied> Kernel for Gather<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let bytes = E::BYTES * self.dim;
        let distance = prefetch_distance(bytes);
        for &row in self.rows.iter().take(distance) {
            prefetch(row, bytes);
        }
        for (i, &row) in self.rows.iter().enumerate() {
            if let Some(&ahead) = self.rows.get(i + distance) {
                prefetch(ahead, bytes);
            }
            // SAFETY: the row has `dim` weights, and the target has room for `dim` floats.
            unsafe { E::copy::<V>(row, self.out.add(i * self.out_stride), self.dim) };
        }
    }
}

impl<E: Element> Copied for E {
    const BYTES: usize = E::BYTES;

    #[inline(always)]
    unsafe fn copy<V: Vector>(source: RowPtr, target: *mut f32, dim: usize) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            let mut column = 0;
            while column + V::LANES <= dim {
                E::load_up_to::<V>(source, column, V::LANES).store(target.add(column));
                column += V::LANES;
            }
            if column < dim {
                let count = dim - column;
                E::load_up_to::<V>(source, column, count).store_first(target.add(column), count);
            }
        }
    }
}

/// Both planes of split weights.
struct SplitBf16;

impl Copied for SplitBf16 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn copy<V: Vector>(source: RowPtr, target: *mut f32, dim: usize) {
        let upper = source.cast::<u16>();
        // SAFETY: the caller upholds the contract; the lower halves follow the upper ones.
        unsafe { split::join_raw::<V>(upper, upper.add(dim), target, dim) };
    }
}
