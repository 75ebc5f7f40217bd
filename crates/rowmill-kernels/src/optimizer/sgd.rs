//! Stochastic gradient descent: `w -= lr * g`, fused as in `torch.optim.SGD`.

use super::{Elementwise, Update};
use crate::arch::Vector;

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
    unsafe fn block<V: Vector>(
        self,
        row: *mut f32,
        gradient: *const f32,
        _dim: usize,
        column: usize,
        count: usize,
    ) {
        // SAFETY: the caller's.
        unsafe {
            let w = row.add(column);
            let g = V::load_up_to(gradient.add(column), count);
            V::splat(-self.lr).mul_add(g, V::load_up_to(w, count)).store_up_to(w, count);
        }
    }
}
