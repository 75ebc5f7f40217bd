//! Adam (Kingma and Ba 2015) on the rows that a step updates, as in `torch.optim.SparseAdam`:
//! `m += (g - m) * (1 - beta1); v += (g * g - v) * (1 - beta2); w -= rate * (m / (sqrt(v) + eps))` with
//! `rate = lr * sqrt(1 - beta2^step) / (1 - beta1^step)`. The moments of other rows do not change.

use super::{Elementwise, Update, written};
use crate::arch::Vector;
use crate::weights::Weights;

#[derive(Clone, Copy)]
pub(super) struct Adam {
    corrected: Corrected,
    eps: f32,
}

/// Factors derived from learning rate and decays, for one step of the table.
#[derive(Clone, Copy)]
pub(super) struct Corrected {
    /// The learning rate, with the bias corrections of both moments.
    pub(super) rate: f32,
    /// `1 - beta1` and `1 - beta2`
    pub(super) gains: (f32, f32),
}

impl Adam {
    pub(super) fn new(beta1: f32, beta2: f32, eps: f32, update: &Update) -> Self {
        Self { corrected: Corrected::new(beta1, beta2, update), eps }
    }
}

impl Corrected {
    pub(super) fn new(beta1: f32, beta2: f32, update: &Update) -> Self {
        debug_assert!(update.step > 0, "steps count from 1");
        let (beta1, beta2) = (written(beta1), written(beta2));
        let (correction1, correction2) = (1.0 - power(beta1, update.step), 1.0 - power(beta2, update.step));
        let rate = written(update.lr) * correction2.sqrt() / correction1;
        Self { rate: rate as f32, gains: ((1.0 - beta1) as f32, (1.0 - beta2) as f32) }
    }
}

impl Elementwise for Adam {
    #[inline(always)]
    unsafe fn block<V: Vector, W: Weights>(
        self,
        weights: W,
        state: *mut f32,
        gradient: *const f32,
        dim: usize,
        column: usize,
        count: usize,
    ) {
        let Corrected { rate, gains } = self.corrected;
        // SAFETY: the caller upholds the contract; the state is `dim` first moments, then `dim` second
        // moments.
        unsafe {
            let (m, v) = (state.add(column), state.add(dim + column));
            let g = V::load_up_to(gradient.add(column), count);
            let first = V::load_up_to(m, count);
            let first = first.add(g.sub(first).mul(V::splat(gains.0)));
            first.store_up_to(m, count);
            let second = V::load_up_to(v, count);
            let second = second.add(g.mul(g).sub(second).mul(V::splat(gains.1)));
            second.store_up_to(v, count);
            let step = first.div(second.sqrt().add(V::splat(self.eps)));
            let w: V = weights.load_up_to(column, count);
            weights.store_up_to(w.sub(V::splat(rate).mul(step)), column, count);
        }
    }
}

/// `base^exponent` by repeated squaring: `f64::powf` may differ between C libraries.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}
