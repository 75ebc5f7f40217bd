//! Row-wise Adam: one second moment per row, of the mean square, as in `PARTIAL_ROWWISE_ADAM` of FBGEMM:
//! `m += (g - m) * (1 - beta1); v += (mean(g * g) - v) * (1 - beta2); w -= rate / (sqrt(v) + eps) * m`.
//! `rate` is that of Adam, so as in Adam `eps` is added to the root before the bias correction.

use super::adam::Corrected;
use super::mean_square::mean_square;
use super::{Elementwise, Rule, Update};
use crate::arch::Vector;
use crate::weights::Weights;

#[derive(Clone, Copy)]
pub(super) struct RowwiseAdam {
    corrected: Corrected,
    eps: f32,
}

impl RowwiseAdam {
    pub(super) fn new(beta1: f32, beta2: f32, eps: f32, update: &Update) -> Self {
        Self { corrected: Corrected::new(beta1, beta2, update), eps }
    }
}

impl Rule for RowwiseAdam {
    #[inline(always)]
    unsafe fn apply<V: Vector, W: Weights>(
        self,
        weights: W,
        state: *mut f32,
        gradient: *const f32,
        dim: usize,
    ) {
        let Corrected { rate, gains } = self.corrected;
        // SAFETY: the caller upholds the contract; the state is `dim` first moments, then one second moment.
        unsafe {
            let moment = state.add(dim);
            let second = *moment + (mean_square::<V>(gradient, dim) - *moment) * gains.1;
            *moment = second;
            let step = Step { gain: gains.0, factor: -(rate / (second.sqrt() + self.eps)) };
            step.apply::<V, W>(weights, state, gradient, dim);
        }
    }
}

/// The elementwise part of the update, after the second moment is known.
#[derive(Clone, Copy)]
struct Step {
    gain: f32,
    factor: f32,
}

impl Elementwise for Step {
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
        // SAFETY: the caller upholds the contract; the state starts with the first moments.
        unsafe {
            let m = state.add(column);
            let g = V::load_up_to(gradient.add(column), count);
            let first = V::load_up_to(m, count);
            let first = first.add(g.sub(first).mul(V::splat(self.gain)));
            first.store_up_to(m, count);
            let w = V::splat(self.factor).mul_add(first, weights.load_up_to(column, count));
            weights.store_up_to(w, column, count);
        }
    }
}
