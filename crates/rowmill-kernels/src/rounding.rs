//! Random bits for rounding updated bf16 weights: a pure function of (seed, category, step, id, column).
//!
//! A row at a step has 64 bits, [`crate::hash`] of the first four. The 16 of a weight come from those and its
//! column by two rounds of multiplying and shifting in 32 bits, as many columns at a time as a vector has lanes;
//! the constants are those of `lowbias32` (Wellons 2018, "Prospecting for Hash Functions"). Every instruction set
//! gives the same bits, and so does a run that goes on from a checkpoint: steps are counted in it.
//!
//! A resumed run depends on these bits, so they never change: a test pins them.

use rowmill_splitmix::absorb;

use crate::arch::{Bits, Vector};

/// Keeps the bits apart from those that initial weights are drawn from.
const PURPOSE: u64 = 0x726f_756e_6469_6e67;
/// 2^32 divided by the golden ratio: the odd step between columns.
const COLUMN_STEP: u32 = 0x9e37_79b9;
const FACTORS: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

/// What the updates of one table are rounded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundingKey(u64);

impl RoundingKey {
    /// For the rows of `category` in a store seeded with `seed`.
    pub fn new(seed: u64, category: u32) -> Self {
        Self(absorb(absorb(absorb(0, seed), u64::from(category)), PURPOSE))
    }
}

/// What the updates of some rows are rounded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding<'a> {
    /// Of their table.
    pub key: RoundingKey,
    /// Their ids, in their order.
    pub ids: &'a [u64],
}

/// The bits of one row at one step.
#[derive(Clone, Copy)]
pub(crate) struct Noise {
    low: u32,
    high: u32,
}

impl Noise {
    /// The key of one step of a table, which [`Noise::of_row`] takes.
    #[inline(always)]
    pub(crate) fn at_step(key: RoundingKey, step: u64) -> u64 {
        absorb(key.0, step)
    }

    /// Of row `id`.
    #[inline(always)]
    pub(crate) fn of_row(key: u64, id: u64) -> Self {
        let bits = absorb(key, id);
        Self { low: bits as u32, high: (bits >> 32) as u32 }
    }

    /// A random number below 2^16 for each of the columns from `column` on.
    ///
    /// # Safety
    /// Only called below [`InstructionSet::run`](crate::InstructionSet).
    #[inline(always)]
    pub(crate) unsafe fn columns<V: Vector>(self, column: usize) -> V::Bits {
        let first = self.low.wrapping_add((column as u32).wrapping_mul(COLUMN_STEP));
        // SAFETY: the caller's.
        unsafe {
            let counter = V::Bits::ascending().mul(V::Bits::splat(COLUMN_STEP)).add(V::Bits::splat(first));
            let once = counter.xor(counter.shift_right(16)).mul(V::Bits::splat(FACTORS[0]));
            let once = once.xor(V::Bits::splat(self.high));
            let twice = once.xor(once.shift_right(15)).mul(V::Bits::splat(FACTORS[1]));
            twice.shift_right(16)
        }
    }
}
