//! Row-wise Adagrad: one accumulator per row, `s += mean(g * g); w -= lr / (sqrt(s) + eps) * g`.

use super::mean_square::mean_square;
use super::{Rule, Update};
use crate::arch::Vector;
use crate::weights::Weights;

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
    unsafe fn apply<V: Vector, W: Weights>(
        self,
        weights: W,
        state: *mut f32,
        gradient: *const f32,
        dim: usize,
    ) {
        // SAFETY: the caller upholds the contract; the state is the accumulator.
        unsafe {
            let sum = *state + mean_square::<V>(gradient, dim);
            let factor = V::splat(-(self.lr / (sum.sqrt() + self.eps)));
            let mut column = 0;
            while column + V::LANES <= dim {
                let w = factor.mul_add(V::load(gradient.add(column)), weights.load_up_to(column, V::LANES));
                weights.store_up_to(w, column, V::LANES);
                column += V::LANES;
            }
            if column < dim {
                let count = dim - column;
                let g = V::load_first(gradient.add(column), count);
                weights.store_up_to(factor.mul_add(g, weights.load_up_to(column, count)), column, count);
            }
            // Stored last: a partial vector load would wait for this store, even if the load masks that lane.
            *state = sum;
        }
    }
}
