//! Row-wise Adagrad: one accumulator per row, `s += mean(g * g); w -= lr / (sqrt(s) + eps) * g`.

use super::mean_square::mean_square;
use super::{Rule, Update};
use crate::arch::Vector;

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
            let sum = *accumulator + mean_square::<V>(gradient, dim);
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
            // Last: the load of part of a vector waits for a store among the lanes that it leaves out.
            *accumulator = sum;
        }
    }
}
