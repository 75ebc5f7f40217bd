//! Finite: find the first NaN or infinity of a gradient before it reaches a row.

use crate::arch::{InstructionSet, Kernel, Vector};

/// Number of floats between two checks for an early exit.
const BLOCK: usize = 256;

/// All exponent bits set: NaN or infinity.
const EXPONENT: u32 = 0x7f80_0000;

/// Position of the first NaN or infinity.
pub fn first_non_finite(values: &[f32]) -> Option<usize> {
    first_non_finite_with(InstructionSet::best(), values)
}

/// [`first_non_finite`] with a chosen instruction set.
pub fn first_non_finite_with(set: InstructionSet, values: &[f32]) -> Option<usize> {
    // SAFETY: the kernel has no requirements.
    unsafe { set.run(Finite(values)) }
}

struct Finite<'a>(&'a [f32]);

impl Kernel for Finite<'_> {
    type Output = Option<usize>;

    /// Plain integer code: the compiler vectorises the maximum for each instruction set.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> Option<usize> {
        for (block, values) in self.0.chunks(BLOCK).enumerate() {
            let mut largest = 0;
            for value in values {
                largest = largest.max(value.to_bits() & !(1 << 31));
            }
            if largest >= EXPONENT {
                let inside = values.iter().position(|value| !value.is_finite());
                return inside.map(|position| block * BLOCK + position);
            }
        }
        None
    }
}
