//! Optimizers: update a row in place from one gradient.
//!
//! Each optimizer is one file: a [`Rule`] made from its hyper-parameters and the [`Update`], generic over the
//! vector type. `RowUpdater::dispatch` names each optimizer once.

mod adagrad;
mod adam;
mod ftrl;
mod mean_square;
mod momentum_sgd;
mod rowwise_adagrad;
mod rowwise_adam;
mod sgd;

use std::mem::MaybeUninit;

use rowmill_rows::{Dtype, OptimizerSpec, RowLayout};

use crate::accumulate::Scattered;
use crate::arch::{InstructionSet, Kernel, Vector, prefetch};
use crate::rounding::Noise;
use crate::weights::{Bf16Rows, F32Rows, Rows, SplitRows, Weights};
use crate::{LookupOrder, Rounding};

/// How many rows ahead to prefetch; the same trade-off as for sums.
const PREFETCH_DISTANCE: usize = 16;

/// Gradients of up to this many floats are summed on the stack.
const SHORT: usize = 512;

/// Inputs that change from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update<'a> {
    /// Learning rate of this step.
    pub lr: f32,
    /// Number of this step of the table, counted from 1. Used for Adam's bias correction and for rounding.
    pub step: u64,
    /// Inputs of the rounding of bf16 weights; unused for other types.
    pub rounding: Option<Rounding<'a>>,
}

/// Applies one optimizer to rows of one width.
#[derive(Clone, Copy, Debug)]
pub struct RowUpdater {
    optimizer: OptimizerSpec,
    dtype: Dtype,
    dim: usize,
    /// Bytes of the weights; and, in the next field, bytes of weights and state.
    state_offset: usize,
    row_bytes: usize,
    set: InstructionSet,
}

/// The arithmetic of one optimizer at one step.
pub(crate) trait Rule: Copy {
    /// Update the `dim` weights of a row and its state.
    ///
    /// # Safety
    /// Weights, state and gradient may be accessed. Only call this inside [`InstructionSet::run`].
    unsafe fn apply<V: Vector, W: Weights>(
        self,
        weights: W,
        state: *mut f32,
        gradient: *const f32,
        dim: usize,
    );
}

impl RowUpdater {
    /// An updater of rows with `dim` weights of type `dtype` under `optimizer`. The spec's learning rate is
    /// not used: every update names one.
    pub fn new(optimizer: &OptimizerSpec, dtype: Dtype, dim: usize) -> Self {
        Self::with(InstructionSet::best(), optimizer, dtype, dim)
    }

    /// [`RowUpdater::new`] with a chosen instruction set.
    pub fn with(set: InstructionSet, optimizer: &OptimizerSpec, dtype: Dtype, dim: usize) -> Self {
        let layout = RowLayout::new(dim, dtype, optimizer, false);
        let state_offset = layout.state_offset();
        let row_bytes = state_offset + 4 * layout.state_floats;
        Self { optimizer: *optimizer, dtype, dim, state_offset, row_bytes, set }
    }

    /// Update one row.
    ///
    /// # Panics
    /// If the gradient is not `dim` floats, or bf16 rows are given without `rounding`.
    ///
    /// # Safety
    /// `row` points to `dim` weights followed by the optimizer's state. No other thread uses them meanwhile.
    pub unsafe fn apply(&self, row: *mut f32, gradient: &[f32], update: &Update<'_>) {
        // SAFETY: the caller upholds the contract.
        unsafe { self.apply_many(&[row], gradient, update) }
    }

    /// Update `rows[i]` with `gradients[i * dim..][..dim]`, in order.
    ///
    /// # Panics
    /// If there is not one gradient per row, or as for [`RowUpdater::apply`].
    ///
    /// # Safety
    /// Every row points to `dim` weights followed by the optimizer's state. No other thread uses them
    /// meanwhile, and no row overlaps the gradients.
    pub unsafe fn apply_many(&self, rows: &[*mut f32], gradients: &[f32], update: &Update<'_>) {
        assert_eq!(
            Some(gradients.len()),
            rows.len().checked_mul(self.dim),
            "there must be one gradient per row"
        );
        // SAFETY: the caller upholds the contract.
        unsafe { self.dispatch(rows, Gradients::Rows(gradients), update) }
    }

    /// Update `rows[i]` with the gradient at `gradients[i]`, in order. Neither is prefetched: both should
    /// already be in the caches.
    ///
    /// # Panics
    /// If there is not one gradient per row, or as for [`RowUpdater::apply`].
    ///
    /// # Safety
    /// As for [`RowUpdater::apply_many`], and every gradient has `dim` readable floats.
    pub unsafe fn apply_each(&self, rows: &[*mut f32], gradients: &[*const f32], update: &Update<'_>) {
        assert_eq!(gradients.len(), rows.len(), "there must be one gradient per row");
        // SAFETY: the caller upholds the contract.
        unsafe { self.dispatch(rows, Gradients::Each(gradients), update) }
    }

    /// Fused accumulate and apply: update `rows[i]`, the unique row `unique[i]` of `order`, with the sum over
    /// its lookups. The sum equals [`accumulate_range`](crate::accumulate_range) bit for bit, but is not
    /// written to memory. Rows should already be in the caches.
    ///
    /// # Panics
    /// If there is not one row per unique row, the order has no such unique row, or as for
    /// [`RowUpdater::apply`].
    ///
    /// # Safety
    /// As for [`RowUpdater::apply_many`], and `gradients` has `dim` readable floats at `bag * stride` for
    /// every bag of the lookups.
    pub unsafe fn apply_lookups(
        &self,
        rows: &[*mut f32],
        order: &LookupOrder,
        unique: &[u32],
        gradients: *const f32,
        stride: usize,
        update: &Update<'_>,
    ) {
        assert!(
            unique.iter().all(|&row| (row as usize) < order.unique()),
            "unique rows must be rows of the order"
        );
        assert_eq!(unique.len(), rows.len(), "there must be one row per unique row");
        let source = Gradients::Bags { order, unique, gradients, stride };
        // SAFETY: the caller upholds the contract.
        unsafe { self.dispatch(rows, source, update) }
    }

    unsafe fn dispatch(&self, rows: &[*mut f32], gradients: Gradients<'_>, update: &Update<'_>) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match self.optimizer {
                OptimizerSpec::Sgd { .. } => self.run(sgd::Sgd::new(update), rows, gradients, update),
                OptimizerSpec::MomentumSgd { momentum, nesterov, .. } => {
                    let rule = momentum_sgd::MomentumSgd::new(momentum, nesterov, update);
                    self.run(rule, rows, gradients, update);
                }
                OptimizerSpec::Adagrad { eps, .. } => {
                    self.run(adagrad::Adagrad::new(eps, update), rows, gradients, update);
                }
                OptimizerSpec::RowwiseAdagrad { eps, .. } => {
                    self.run(rowwise_adagrad::RowwiseAdagrad::new(eps, update), rows, gradients, update);
                }
                OptimizerSpec::Adam { beta1, beta2, eps, .. } => {
                    self.run(adam::Adam::new(beta1, beta2, eps, update), rows, gradients, update);
                }
                OptimizerSpec::RowwiseAdam { beta1, beta2, eps, .. } => {
                    let rule = rowwise_adam::RowwiseAdam::new(beta1, beta2, eps, update);
                    self.run(rule, rows, gradients, update);
                }
                OptimizerSpec::Ftrl { beta, l1, l2, .. } => {
                    self.run(ftrl::Ftrl::new(beta, l1, l2, update), rows, gradients, update);
                }
            }
        }
    }

    unsafe fn run<R: Rule>(&self, rule: R, rows: &[*mut f32], gradients: Gradients<'_>, update: &Update<'_>) {
        let Self { dim, row_bytes, state_offset, .. } = *self;
        // SAFETY: the caller upholds the contract; there is one gradient per row.
        unsafe {
            match self.dtype {
                Dtype::F32 => {
                    let stored = F32Rows { dim };
                    self.set.run(Apply { rule, stored, rows, gradients, dim, row_bytes });
                }
                Dtype::Bf16 => {
                    let Rounding { key, ids } = update.rounding.expect("bf16 rows need a rounding");
                    assert_eq!(ids.len(), rows.len(), "one id per row");
                    let stored = Bf16Rows { ids, key: Noise::at_step(key, update.step), state_offset };
                    self.set.run(Apply { rule, stored, rows, gradients, dim, row_bytes });
                }
                Dtype::SplitBf16 => {
                    let stored = SplitRows { dim };
                    self.set.run(Apply { rule, stored, rows, gradients, dim, row_bytes });
                }
            }
        }
    }
}

/// Source of the rows' gradients.
#[derive(Clone, Copy)]
enum Gradients<'a> {
    /// One per row, contiguous.
    Rows(&'a [f32]),
    /// One address per row.
    Each(&'a [*const f32]),
    /// The gradients of the bags that looked up these unique rows.
    Bags { order: &'a LookupOrder, unique: &'a [u32], gradients: *const f32, stride: usize },
}

struct Apply<'a, R, S> {
    rule: R,
    /// Storage format of the rows.
    stored: S,
    rows: &'a [*mut f32],
    gradients: Gradients<'a>,
    dim: usize,
    row_bytes: usize,
}

impl<R: Rule, S: Rows> Kernel for Apply<'_, R, S> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match self.gradients {
                Gradients::Rows(gradients) => self.apply_rows::<V>(gradients),
                Gradients::Each(gradients) => {
                    for (number, &gradient) in gradients.iter().enumerate() {
                        self.apply::<V>(number, gradient);
                    }
                }
                Gradients::Bags { order, unique, gradients, stride } => {
                    self.apply_bags::<V>(order, unique, gradients, stride);
                }
            }
        }
    }
}

impl<R: Rule, S: Rows> Apply<'_, R, S> {
    /// Update the row with this number.
    #[inline(always)]
    unsafe fn apply<V: Vector>(&self, number: usize, gradient: *const f32) {
        // SAFETY: the caller upholds the contract; there are as many rows as gradients.
        unsafe {
            let (weights, state) = self.stored.row(number, *self.rows.get_unchecked(number));
            self.rule.apply::<V, _>(weights, state, gradient, self.dim);
        }
    }

    #[inline(always)]
    unsafe fn apply_rows<V: Vector>(&self, gradients: &[f32]) {
        for &row in &self.rows[..self.rows.len().min(PREFETCH_DISTANCE)] {
            prefetch(row, self.row_bytes);
        }
        for i in 0..self.rows.len() {
            if let Some(&ahead) = self.rows.get(i + PREFETCH_DISTANCE) {
                prefetch(ahead, self.row_bytes);
            }
            // SAFETY: the caller upholds the contract; there is one gradient per row.
            unsafe { self.apply::<V>(i, gradients.as_ptr().add(i * self.dim)) };
        }
    }

    #[inline(always)]
    unsafe fn apply_bags<V: Vector>(
        &self,
        order: &LookupOrder,
        unique: &[u32],
        gradients: *const f32,
        stride: usize,
    ) {
        let mut short = [const { MaybeUninit::<f32>::uninit() }; SHORT];
        let mut long: Vec<f32>;
        let sum = if self.dim <= SHORT {
            short.as_mut_ptr().cast::<f32>()
        } else {
            long = vec![0.0; self.dim.next_multiple_of(V::LANES)];
            long.as_mut_ptr()
        };
        let sums = Scattered::new(order, gradients, stride, self.dim, sum);
        for (number, &unique) in unique.iter().enumerate() {
            // SAFETY: the caller upholds the contract; all `dim` floats of the sum are written before it is
            // applied.
            unsafe {
                sums.sum::<V>(unique as usize);
                self.apply::<V>(number, sum);
            }
        }
    }
}

/// A rule that treats every element separately.
pub(crate) trait Elementwise: Copy {
    /// Update weights `column..column + count` of a row; `count` is at most `LANES`.
    ///
    /// # Safety
    /// As for [`Rule::apply`], and the columns lie inside the row.
    unsafe fn block<V: Vector, W: Weights>(
        self,
        weights: W,
        state: *mut f32,
        gradient: *const f32,
        dim: usize,
        column: usize,
        count: usize,
    );
}

impl<E: Elementwise> Rule for E {
    #[inline(always)]
    unsafe fn apply<V: Vector, W: Weights>(
        self,
        weights: W,
        state: *mut f32,
        gradient: *const f32,
        dim: usize,
    ) {
        // SAFETY: the caller upholds the contract; columns stay below `dim`.
        unsafe {
            let mut column = 0;
            while column + V::LANES <= dim {
                self.block::<V, W>(weights, state, gradient, dim, column, V::LANES);
                column += V::LANES;
            }
            if column < dim {
                self.block::<V, W>(weights, state, gradient, dim, column, dim - column);
            }
        }
    }
}

/// The decimal number that a hyper-parameter was written as.
///
/// Specs store f32, but `torch` computes in f64. `0.999` as f32 is off by 1.3e-8, which is a relative error
/// of 1.3e-5 in `1 - 0.999`. The shortest decimal that parses to this f32 is the number that the user wrote.
fn written(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
