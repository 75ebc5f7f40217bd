//! Storage formats of weights: kernels read and write them as vectors of 32-bit floats.
//!
//! A new format needs three types, which implement [`Element`], [`Rows`] and [`Weights`]. The format is
//! resolved once per call.

use crate::arch::Vector;
use crate::rounding::Noise;
use crate::{RowPtr, bf16, split};

/// A type of stored weights, for kernels that read rows.
pub(crate) trait Element {
    /// Bytes of one weight.
    const BYTES: usize;

    /// Weights `column..column + count` of a row; `count` is at most `LANES`. Has no branches if `count` is
    /// known to be `LANES`.
    ///
    /// # Safety
    /// The row has these weights. Only call this inside [`InstructionSet::run`](crate::InstructionSet).
    unsafe fn load_up_to<V: Vector>(row: RowPtr, column: usize, count: usize) -> V;
}

/// 32-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct F32;

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(row: RowPtr, column: usize, count: usize) -> V {
        // SAFETY: the caller upholds the contract.
        unsafe { V::load_up_to(row.add(column), count) }
    }
}

/// bfloat16. Bytes after the weights are ignored.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(row: RowPtr, column: usize, count: usize) -> V {
        // SAFETY: the caller upholds the contract; the row starts with its weights, two bytes each.
        unsafe { bf16::load_up_to(row.cast::<u16>().add(column), count) }
    }
}

/// The weights of one row, for kernels that update it.
pub(crate) trait Weights: Copy {
    /// Read weights `column..column + count`; `count` is at most `LANES`.
    ///
    /// # Safety
    /// As for [`Element::load_up_to`], and no other thread uses the row meanwhile.
    unsafe fn load_up_to<V: Vector>(self, column: usize, count: usize) -> V;

    /// Write these weights, rounded to the stored type.
    ///
    /// # Safety
    /// As for [`Weights::load_up_to`].
    unsafe fn store_up_to<V: Vector>(self, weights: V, column: usize, count: usize);
}

/// The rows of one call, for kernels that update them.
pub(crate) trait Rows: Copy {
    /// Type of one row's weights.
    type Weights: Weights;

    /// The weights of the row at `row`, which is number `number` of the call, and its state, which follows
    /// them.
    ///
    /// # Safety
    /// `row` is a row of the call.
    unsafe fn row(self, number: usize, row: *mut f32) -> (Self::Weights, *mut f32);
}

/// Rows of 32-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct F32Rows {
    pub(crate) dim: usize,
}

/// The weights of one row of 32-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct F32Weights(*mut f32);

impl Rows for F32Rows {
    type Weights = F32Weights;

    #[inline(always)]
    unsafe fn row(self, _number: usize, row: *mut f32) -> (F32Weights, *mut f32) {
        // SAFETY: the caller upholds the contract; the state follows `dim` floats.
        unsafe { (F32Weights(row), row.add(self.dim)) }
    }
}

impl Weights for F32Weights {
    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(self, column: usize, count: usize) -> V {
        // SAFETY: the caller upholds the contract.
        unsafe { F32::load_up_to(self.0, column, count) }
    }

    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(self, weights: V, column: usize, count: usize) {
        // SAFETY: the caller upholds the contract.
        unsafe { weights.store_up_to(self.0.add(column), count) }
    }
}

/// Rows of bfloat16, with the inputs of their rounding.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Rows<'a> {
    /// The id of each row.
    pub(crate) ids: &'a [u64],
    /// The key of the step.
    pub(crate) key: u64,
    /// Bytes before the state.
    pub(crate) state_offset: usize,
}

/// The weights of one row of bfloat16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Weights {
    row: *mut f32,
    noise: Noise,
}

impl Rows for Bf16Rows<'_> {
    type Weights = Bf16Weights;

    #[inline(always)]
    unsafe fn row(self, number: usize, row: *mut f32) -> (Bf16Weights, *mut f32) {
        let noise = Noise::of_row(self.key, self.ids[number]);
        // SAFETY: the caller upholds the contract; the state follows the weights.
        unsafe { (Bf16Weights { row, noise }, row.byte_add(self.state_offset)) }
    }
}

impl Weights for Bf16Weights {
    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(self, column: usize, count: usize) -> V {
        // SAFETY: the caller upholds the contract.
        unsafe { Bf16::load_up_to(self.row, column, count) }
    }

    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(self, weights: V, column: usize, count: usize) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            let target = self.row.cast::<u16>().add(column);
            bf16::store_up_to(weights, self.noise.columns::<V>(column), target, count);
        }
    }
}

/// Rows of 32-bit floats in two planes.
#[derive(Clone, Copy)]
pub(crate) struct SplitRows {
    pub(crate) dim: usize,
}

/// The weights of one row in two planes.
#[derive(Clone, Copy)]
pub(crate) struct SplitWeights {
    upper: *mut u16,
    lower: *mut u16,
}

impl Rows for SplitRows {
    type Weights = SplitWeights;

    #[inline(always)]
    unsafe fn row(self, _number: usize, row: *mut f32) -> (SplitWeights, *mut f32) {
        let upper = row.cast::<u16>();
        // SAFETY: the caller upholds the contract; the lower halves follow the upper ones, and the state
        // follows both.
        unsafe { (SplitWeights { upper, lower: upper.add(self.dim) }, row.add(self.dim)) }
    }
}

impl Weights for SplitWeights {
    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(self, column: usize, count: usize) -> V {
        // SAFETY: the caller upholds the contract.
        unsafe { split::load_up_to(self.upper.add(column), self.lower.add(column), count) }
    }

    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(self, weights: V, column: usize, count: usize) {
        // SAFETY: the caller upholds the contract.
        unsafe { split::store_up_to(weights, self.upper.add(column), self.lower.add(column), count) }
    }
}
