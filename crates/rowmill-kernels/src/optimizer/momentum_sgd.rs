//! SGD with momentum on the rows a step touches: `v = momentum * v + g; w -= lr * v`, or Nesterov's
//! `w -= lr * (g + momentum * v)`. Rounded as `torch.optim.SGD` with no dampening. The velocity of rows a
//! step does not touch stands still; torch's goes on moving them.

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
        // SAFETY: the caller's; the state is the velocity.
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
