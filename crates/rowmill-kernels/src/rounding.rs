//! Random bits for rounding updated bf16 weights: a pure function of (seed, category, step, id, column).
//!
//! A row at a step has 64 bits: [`crate::hash`] of the first four. The 16 bits of a weight come from those
//! bits and its column, by two rounds of 32-bit multiplications and shifts, vectorised over columns. The
//! constants are those of `lowbias32` (Wellons 2018, "Prospecting for Hash Functions"). Every instruction set
//! gives the same bits.
//!
//! Checkpoints store the step number, so a resumed run continues with the same bits. They must never change;
//! a test pins them.

use rowmill_splitmix::absorb;

use crate::arch::{Bits, Vector};

/// Separates these bits from the bits of initial weights.
const PURPOSE: u64 = 0x726f_756e_6469_6e67;
/// 2^32 divided by the golden ratio, rounded to odd: the step between columns.
const COLUMN_STEP: u32 = 0x9e37_79b9;
const FACTORS: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

/// Key of the rounding of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundingKey(u64);

impl RoundingKey {
    /// The key for the rows of `category` in a store with seed `seed`.
    pub fn new(seed: u64, category: u32) -> Self {
        Self(absorb(absorb(absorb(0, seed), u64::from(category)), PURPOSE))
    }
}

/// Key and ids that determine the rounding of some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding<'a> {
    /// Key of their table.
    pub key: RoundingKey,
    /// Ids of the rows, in order.
    pub ids: &'a [u64],
}

/// The random bits of one row at one step.
#[derive(Clone, Copy)]
pub(crate) struct Noise {
    low: u32,
    high: u32,
}

impl Noise {
    /// The key of one step of a table, for [`Noise::of_row`].
    #[inline(always)]
    pub(crate) fn at_step(key: RoundingKey, step: u64) -> u64 {
        absorb(key.0, step)
    }

    /// The bits of row `id`.
    #[inline(always)]
    pub(crate) fn of_row(key: u64, id: u64) -> Self {
        let bits = absorb(key, id);
        Self { low: bits as u32, high: (bits >> 32) as u32 }
    }

    /// A random number below 2^16 for each of `LANES` columns from `column` on.
    ///
    /// # Safety
    /// Only call this inside [`InstructionSet::run`](crate::InstructionSet).
    #[inline(always)]
    pub(crate) unsafe fn columns<V: Vector>(self, column: usize) -> V::Bits {
        let first = self.low.wrapping_add((column as u32).wrapping_mul(COLUMN_STEP));
        // SAFETY: the caller upholds the contract.
        unsafe {
            let counter = V::Bits::ascending().mul(V::Bits::splat(COLUMN_STEP)).add(V::Bits::splat(first));
            let once = counter.xor(counter.shift_right(16)).mul(V::Bits::splat(FACTORS[0]));
            let once = once.xor(V::Bits::splat(self.high));
            let twice = once.xor(once.shift_right(15)).mul(V::Bits::splat(FACTORS[1]));
            twice.shift_right(16)
        }
    }
}
