//! SGD with momentum on the rows that a step updates: `v = momentum * v + g; w -= lr * v`, or Nesterov's
//! `w -= lr * (g + momentum * v)`. Rounding is that of `torch.optim.SGD` without dampening. The velocity of
//! other rows does not change; torch keeps applying it.

use super::{Elementwise, Update};
use crate::arch::Vector;
use crate::weights::Weights;

#[derive(Clone, Copy)]
pub(super) struct MomentumSgd {
    lr: f32,
    momentum: f32,
    nesterov: bool,
}

impl MomentumSgd {
    pub(super) fn new(momentum: f32, nesterov: bool, update: &Update) -> Self {
        Self { lr: update.lr, momentum, nesterov }
    }
}

impl Elementwise for MomentumSgd {
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
        // SAFETY: the caller upholds the contract; the state is the velocity.
        unsafe {
            let v = state.add(column);
            let g = V::load_up_to(gradient.add(column), count);
            let momentum = V::splat(self.momentum);
            let velocity = momentum.mul(V::load_up_to(v, count)).add(g);
            velocity.store_up_to(v, count);
            let step = if self.nesterov { momentum.mul_add(velocity, g) } else { velocity };
            let w = V::splat(-self.lr).mul_add(step, weights.load_up_to(column, count));
            weights.store_up_to(w, column, count);
        }
    }
}
