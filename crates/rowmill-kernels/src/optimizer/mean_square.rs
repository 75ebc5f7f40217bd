//! The mean of the squares of a gradient, which row-wise optimizers accumulate in one number per row.

use crate::arch::Vector;

/// Partial sums of squares: partial `p` sums elements `p`, `p + 16`, `p + 32`, ... Every instruction set
/// computes these and adds them in one order, so all give the same mean.
const PARTIALS: usize = 16;

/// `mean(g * g)`, with the same bits for every instruction set.
///
/// # Safety
/// `gradient` points to `dim` floats. Only call this inside [`InstructionSet::run`](crate::InstructionSet).
#[inline(always)]
pub(super) unsafe fn mean_square<V: Vector>(gradient: *const f32, dim: usize) -> f32 {
    // SAFETY: the caller gives `dim` floats; the vectors of a chunk cover its partials once.
    unsafe {
        let mut vectors = [V::splat(0.0); PARTIALS];
        let mut column = 0;
        while column < dim {
            for (v, partial) in vectors.iter_mut().enumerate().take(PARTIALS / V::LANES) {
                let at = column + v * V::LANES;
                if at < dim {
                    let g = V::load_up_to(gradient.add(at), V::LANES.min(dim - at));
                    *partial = partial.add(g.mul(g));
                }
            }
            column += PARTIALS;
        }
        // Add by halves: first the vectors, then the lanes of the last vector.
        let mut count = PARTIALS / V::LANES;
        while count > 1 {
            count /= 2;
            for v in 0..count {
                vectors[v] = vectors[v].add(vectors[v + count]);
            }
        }
        vectors[0].sum() / dim as f32
    }
}
