//! FTRL-Proximal with a learning rate per weight (`McMahan` et al., KDD 2013, Algorithm 1), in the form that
//! starts from the current weight: `n' = n + g * g; z += g - (sqrt(n') - sqrt(n)) / lr * w`, then `w = 0`
//! where `|z| <= l1`, and `w = -(z - sign(z) * l1) / ((beta + sqrt(n')) / lr + l2)` elsewhere.
//!
//! The state stores `lr * z`, and all formulas are multiplied by `lr`. At a constant rate, this gives the
//! same weights. When the rate changes, weights stay where they are instead of scaling with it, and a rate of
//! 0 causes no division by 0.

use super::{Elementwise, Update};
use crate::arch::Vector;
use crate::weights::Weights;

#[derive(Clone, Copy)]
pub(super) struct Ftrl {
    lr: f32,
    /// `lr * l1`
    threshold: f32,
    /// `beta + lr * l2`
    offset: f32,
}

impl Ftrl {
    pub(super) fn new(beta: f32, l1: f32, l2: f32, update: &Update) -> Self {
        Self { lr: update.lr, threshold: update.lr * l1, offset: update.lr.mul_add(l2, beta) }
    }
}

impl Elementwise for Ftrl {
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
        // SAFETY: the caller upholds the contract; the state is `dim` floats of `lr * z`, then `dim` sums of
        // squares.
        unsafe {
            let (z, n) = (state.add(column), state.add(dim + column));
            let g = V::load_up_to(gradient.add(column), count);
            let before = V::load_up_to(n, count);
            let sum = before.add(g.mul(g));
            sum.store_up_to(n, count);
            let root = sum.sqrt();
            let pull = V::splat(self.lr).mul_add(g, V::load_up_to(z, count));
            let pull = before.sqrt().sub(root).mul_add(weights.load_up_to(column, count), pull);
            pull.store_up_to(z, count);
            // If `z` is within the threshold, the weight is +0, since a number is subtracted from itself.
            let within = pull.max(V::splat(-self.threshold)).min(V::splat(self.threshold));
            let w = within.sub(pull).div(root.add(V::splat(self.offset)));
            weights.store_up_to(w, column, count);
        }
    }
}
