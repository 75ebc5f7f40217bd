//! Row-wise Adagrad: one accumulator per row, `s += mean(g * g); w -= lr / (sqrt(s) + eps) * g`.

use super::{Rule, Update};
use crate::arch::Vector;

/// Partial sums of squares: partial `p` takes elements `p`, `p + 16`, `p + 32`, ... Every instruction set
/// forms these and adds them up in one order, so all get the same mean.
const PARTIALS: usize = 16;

#[derive(Clone, Copy)]
pub(super) struct RowwiseAdagrad {
    lr: f32,
    eps: f32,
}

impl RowwiseAdagrad {
    pub(super) fn new(eps: f32, update: &Update) -> Self {
        Self { lr: update.lr, eps }
    }
}

impl Rule for RowwiseAdagrad {
    #[inline(always)]
    unsafe fn apply<V: Vector>(self, row: *mut f32, gradient: *const f32, dim: usize) {
        // SAFETY: the caller's; the accumulator is the float behind the weights.
        unsafe {
            let accumulator = row.add(dim);
            let sum = *accumulator + sum_of_squares::<V>(gradient, dim) / dim as f32;
            *accumulator = sum;
            let factor = V::splat(-(self.lr / (sum.sqrt() + self.eps)));
            let mut column = 0;
            while column + V::LANES <= dim {
                let w = row.add(column);
                factor.mul_add(V::load(gradient.add(column)), V::load(w)).store(w);
                column += V::LANES;
            }
            if column < dim {
                let (w, count) = (row.add(column), dim - column);
                let g = V::load_first(gradient.add(column), count);
                factor.mul_add(g, V::load_first(w, count)).store_first(w, count);
            }
        }
    }
}

#[inline(always)]
unsafe fn sum_of_squares<V: Vector>(gradient: *const f32, dim: usize) -> f32 {
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
        let mut partials = [0.0; PARTIALS];
        for (v, partial) in vectors.iter().enumerate().take(PARTIALS / V::LANES) {
            partial.store(partials.as_mut_ptr().add(v * V::LANES));
        }
        for half in [8, 4, 2, 1] {
            for p in 0..half {
                partials[p] += partials[p + half];
            }
        }
        partials[0]
    }
}
