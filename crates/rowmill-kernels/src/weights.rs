//! The weights of a row, however they are stored: kernels read and write vectors of floats.
//!
//! A new way of storing them is a type that implements [`Element`], one that implements [`Rows`] and one of
//! [`Weights`]. Which it is gets resolved once per call.

use crate::arch::Vector;
use crate::rounding::Noise;
use crate::{RowPtr, bf16, split};

/// A type of stored weights, for kernels that read rows.
pub(crate) trait Element {
    /// Bytes of one weight.
    const BYTES: usize;

    /// Weights `column..column + count` of a row, `count` at most `LANES`; free of branches where `count` is
    /// known to be `LANES`.
    ///
    /// # Safety
    /// The row has these weights; only called below [`InstructionSet::run`](crate::InstructionSet).
    unsafe fn load_up_to<V: Vector>(row: RowPtr, column: usize, count: usize) -> V;
}

/// 32-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct F32;

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(row: RowPtr, column: usize, count: usize) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_up_to(row.add(column), count) }
    }
}

/// bfloat16, whatever follows the weights.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(row: RowPtr, column: usize, count: usize) -> V {
        // SAFETY: the caller's; the row begins with its weights, two bytes each.
        unsafe { bf16::load_up_to(row.cast::<u16>().add(column), count) }
    }
}

/// The weights of one row that is being updated, for kernels that write them.
pub(crate) trait Weights: Copy {
    /// Weights `column..column + count`, `count` at most `LANES`.
    ///
    /// # Safety
    /// As for [`Element::load_up_to`], and nobody else uses the row meanwhile.
    unsafe fn load_up_to<V: Vector>(self, column: usize, count: usize) -> V;

    /// Write them, rounded as these weights are.
    ///
    /// # Safety
    /// As for [`Weights::load_up_to`].
    unsafe fn store_up_to<V: Vector>(self, weights: V, column: usize, count: usize);
}

/// The rows of one call, for kernels that write them.
pub(crate) trait Rows: Copy {
    /// Of one of them.
    type Weights: Weights;

    /// The weights of the row at `row`, the call's `number`th, and its state behind them.
    ///
    /// # Safety
    /// It is a row of the call.
    unsafe fn row(self, number: usize, row: *mut f32) -> (Self::Weights, *mut f32);
}

/// Rows of 32-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct F32Rows {
    pub(crate) dim: usize,
}

/// The weights of one of them.
#[derive(Clone, Copy)]
pub(crate) struct F32Weights(*mut f32);

impl Rows for F32Rows {
    type Weights = F32Weights;

    #[inline(always)]
    unsafe fn row(self, _number: usize, row: *mut f32) -> (F32Weights, *mut f32) {
        // SAFETY: the caller's; the state follows `dim` floats.
        unsafe { (F32Weights(row), row.add(self.dim)) }
    }
}

impl Weights for F32Weights {
    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(self, column: usize, count: usize) -> V {
        // SAFETY: the caller's.
        unsafe { F32::load_up_to(self.0, column, count) }
    }

    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(self, weights: V, column: usize, count: usize) {
        // SAFETY: the caller's.
        unsafe { weights.store_up_to(self.0.add(column), count) }
    }
}

/// Rows of bfloat16, and what they are rounded by.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Rows<'a> {
    /// One for each.
    pub(crate) ids: &'a [u64],
    /// That of the step.
    pub(crate) key: u64,
    /// Bytes before the state.
    pub(crate) state_offset: usize,
}

/// The weights of one of them.
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
        // SAFETY: the caller's; the state follows the weights.
        unsafe { (Bf16Weights { row, noise }, row.byte_add(self.state_offset)) }
    }
}

impl Weights for Bf16Weights {
    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(self, column: usize, count: usize) -> V {
        // SAFETY: the caller's.
        unsafe { Bf16::load_up_to(self.row, column, count) }
    }

    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(self, weights: V, column: usize, count: usize) {
        // SAFETY: the caller's.
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

/// The weights of one of them.
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
        // SAFETY: the caller's; the lower halves follow the upper ones, and the state both.
        unsafe { (SplitWeights { upper, lower: upper.add(self.dim) }, row.add(self.dim)) }
    }
}

impl Weights for SplitWeights {
    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(self, column: usize, count: usize) -> V {
        // SAFETY: the caller's.
        unsafe { split::load_up_to(self.upper.add(column), self.lower.add(column), count) }
    }

    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(self, weights: V, column: usize, count: usize) {
        // SAFETY: the caller's.
        unsafe { split::store_up_to(weights, self.upper.add(column), self.lower.add(column), count) }
    }
}
