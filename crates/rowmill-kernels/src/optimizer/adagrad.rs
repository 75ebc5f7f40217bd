//! Adagrad (Duchi et al. 2011): `s += g * g; w -= lr * (g / (sqrt(s) + eps))`.
//!
//! Rounding is that of `torch.optim.Adagrad` for sparse gradients: square and quotient are rounded
//! separately, and the last step is fused. torch's own square root is off by one unit in the last place for
//! one element in hundreds; this one is correctly rounded.

use super::{Elementwise, Update};
use crate::arch::Vector;
use crate::weights::Weights;

#[derive(Clone, Copy)]
pub(super) struct Adagrad {
    lr: f32,
    eps: f32,
}

impl Adagrad {
    pub(super) fn new(eps: f32, update: &Update) -> Self {
        Self { lr: update.lr, eps }
    }
}

impl Elementwise for Adagrad {
    #[inline(always)]
    unsafe fn block<V: Vector, W: Weights>(
        self,
        weights: W,
        state: *mut f32,
        gradient: *const f32,
        _dim: usize,
        column: usize,
        count: usize,
    ) {
        // SAFETY: the caller upholds the contract; the state has one sum per weight.
        unsafe {
            let s = state.add(column);
            let g = V::load_up_to(gradient.add(column), count);
            let sum = V::load_up_to(s, count).add(g.mul(g));
            sum.store_up_to(s, count);
            let step = g.div(sum.sqrt().add(V::splat(self.eps)));
            let w = V::splat(-self.lr).mul_add(step, weights.load_up_to(column, count));
            weights.store_up_to(w, column, count);
        }
    }
}
