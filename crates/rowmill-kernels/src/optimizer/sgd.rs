//! Stochastic gradient descent: `w -= lr * g`, fused as in `torch.optim.SGD`.

use super::{Elementwise, Update};
use crate::arch::Vector;
use crate::weights::Weights;

#[derive(Clone, Copy)]
pub(super) struct Sgd {
    lr: f32,
}

impl Sgd {
    pub(super) fn new(update: &Update) -> Self {
        Self { lr: update.lr }
    }
}

impl Elementwise for Sgd {
    #[inline(always)]
    unsafe fn block<V: Vector, W: Weights>(
        self,
        weights: W,
        _state: *mut f32,
        gradient: *const f32,
        _dim: usize,
        column: usize,
        count: usize,
    ) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            let g = V::load_up_to(gradient.add(column), count);
            let w = V::splat(-self.lr).mul_add(g, weights.load_up_to(column, count));
            weights.store_up_to(w, column, count);
        }
    }
}
