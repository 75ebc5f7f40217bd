//! Row optimizers: hyper-parameters, and how much state a row stores.

use serde::{Deserialize, Serialize};

use crate::SpecError;
use crate::spec::{check, not_negative};

/// An optimizer and its hyper-parameters. The learning rate is the table's default. Every update may use
/// another one (schedules), so the rate is not part of a group's identity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OptimizerSpec {
    /// `w -= lr * g`. No state.
    Sgd {
        /// Learning rate.
        lr: f32,
    },
    /// SGD with momentum: `v = momentum * v + g; w -= lr * v` (dampening 0). Rows without a gradient in a
    /// step do not change. State: `dim` floats.
    MomentumSgd {
        /// Learning rate.
        lr: f32,
        /// Decay of the velocity `v`.
        momentum: f32,
        /// Use Nesterov's step: `w -= lr * (g + momentum * v)`.
        nesterov: bool,
    },
    /// `s += g*g; w -= lr * g / (sqrt(s) + eps)`. State: `dim` floats.
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the square root.
        eps: f32,
        /// Initial value of the accumulator.
        initial_accumulator: f32,
    },
    /// Adagrad with one accumulator per row: `s += mean(g*g)`. State: 1 float.
    RowwiseAdagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the square root.
        eps: f32,
        /// Initial value of the accumulator.
        initial_accumulator: f32,
    },
    /// Adam as in `torch.optim.SparseAdam`: the moments of rows without a gradient in a step do not change,
    /// and the bias correction counts the table's steps. State: `2 * dim` floats.
    Adam {
        /// Learning rate.
        lr: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the square root.
        eps: f32,
    },
    /// Adam with one second moment per row: `v += (mean(g*g) - v) * (1 - beta2)`. State: `dim + 1` floats.
    RowwiseAdam {
        /// Learning rate.
        lr: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the square root.
        eps: f32,
    },
    /// FTRL-Proximal (`McMahan` et al., KDD 2013, Algorithm 1), computed from the current weight:
    /// `n' = n + g*g; z += g - (sqrt(n') - sqrt(n)) / lr * w`, then `w = 0` where `|z| <= l1`, and
    /// `w = -(z - sign(z) * l1) / ((beta + sqrt(n')) / lr + l2)` elsewhere. State: `dim` floats of `lr * z`,
    /// then `dim` floats of `n`.
    Ftrl {
        /// Learning rate (alpha in the paper).
        lr: f32,
        /// Added to the square root.
        beta: f32,
        /// Strength of the L1 penalty, which sets small weights to 0.
        l1: f32,
        /// Strength of the L2 penalty, on half the squared weights.
        l2: f32,
        /// Initial value of `n`.
        initial_accumulator: f32,
    },
}

impl OptimizerSpec {
    /// Floats of state per row of `dim` weights.
    pub fn state_floats(&self, dim: usize) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::MomentumSgd { .. } | Self::Adagrad { .. } => dim,
            Self::RowwiseAdagrad { .. } => 1,
            Self::Adam { .. } | Self::Ftrl { .. } => 2 * dim,
            Self::RowwiseAdam { .. } => dim + 1,
        }
    }

    /// Initialise the state of a new row (`state_floats` floats). The accumulators are at its end.
    pub fn initialize_state(&self, state: &mut [f32]) {
        let (accumulators, value) = match *self {
            Self::Adagrad { initial_accumulator, .. } | Self::RowwiseAdagrad { initial_accumulator, .. } => {
                (state.len(), initial_accumulator)
            }
            Self::Ftrl { initial_accumulator, .. } => (state.len() / 2, initial_accumulator),
            Self::Sgd { .. } | Self::MomentumSgd { .. } | Self::Adam { .. } | Self::RowwiseAdam { .. } => {
                (0, 0.0)
            }
        };
        let (zeros, accumulators) = state.split_at_mut(state.len() - accumulators);
        zeros.fill(0.0);
        accumulators.fill(value);
    }

    /// The table's default learning rate.
    pub fn lr(&self) -> f32 {
        match *self {
            Self::Sgd { lr }
            | Self::MomentumSgd { lr, .. }
            | Self::Adagrad { lr, .. }
            | Self::RowwiseAdagrad { lr, .. }
            | Self::Adam { lr, .. }
            | Self::RowwiseAdam { lr, .. }
            | Self::Ftrl { lr, .. } => lr,
        }
    }

    /// The same optimizer with another learning rate.
    #[must_use]
    pub fn with_lr(mut self, rate: f32) -> Self {
        match &mut self {
            Self::Sgd { lr }
            | Self::MomentumSgd { lr, .. }
            | Self::Adagrad { lr, .. }
            | Self::RowwiseAdagrad { lr, .. }
            | Self::Adam { lr, .. }
            | Self::RowwiseAdam { lr, .. }
            | Self::Ftrl { lr, .. } => {
                *lr = rate;
            }
        }
        self
    }

    /// Check every hyper-parameter; the error names the first invalid one.
    ///
    /// # Errors
    /// [`SpecError::Field`] with the parameter, its permitted values and its value.
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        not_negative("optimizer lr", self.lr())?;
        match *self {
            Self::Sgd { .. } => Ok(()),
            Self::MomentumSgd { momentum, .. } => {
                let expected = "above 0 and below 1 (use SGD for 0)";
                check("optimizer momentum", expected, momentum, momentum > 0.0 && momentum < 1.0)
            }
            Self::Adagrad { eps, initial_accumulator, .. }
            | Self::RowwiseAdagrad { eps, initial_accumulator, .. } => {
                not_negative("optimizer eps", eps)?;
                not_negative("optimizer initial_accumulator", initial_accumulator)
            }
            Self::Adam { beta1, beta2, eps, .. } | Self::RowwiseAdam { beta1, beta2, eps, .. } => {
                decay("optimizer beta1", beta1)?;
                decay("optimizer beta2", beta2)?;
                not_negative("optimizer eps", eps)
            }
            Self::Ftrl { beta, l1, l2, initial_accumulator, .. } => {
                not_negative("optimizer beta", beta)?;
                not_negative("optimizer l1", l1)?;
                not_negative("optimizer l2", l2)?;
                not_negative("optimizer initial_accumulator", initial_accumulator)?;
                // If both were 0, a gradient of 0 would compute 0 / 0.
                let expected = "> 0 when initial_accumulator is 0";
                check("optimizer beta", expected, beta, beta > 0.0 || initial_accumulator > 0.0)
            }
        }
    }
}

fn decay(field: &'static str, value: f32) -> Result<(), SpecError> {
    check(field, "in [0, 1)", value, (0.0..1.0).contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_state_is_the_accumulator_value_or_zero() {
        let state = |optimizer: OptimizerSpec| {
            let mut state = vec![f32::NAN; optimizer.state_floats(2)];
            optimizer.initialize_state(&mut state);
            state
        };
        let (lr, beta1, beta2, eps, initial_accumulator) = (0.1, 0.9, 0.99, 1e-8, 0.5);
        assert_eq!(state(OptimizerSpec::Sgd { lr }), []);
        assert_eq!(state(OptimizerSpec::MomentumSgd { lr, momentum: 0.9, nesterov: false }), [0.0; 2]);
        assert_eq!(state(OptimizerSpec::Adagrad { lr, eps, initial_accumulator }), [0.5; 2]);
        assert_eq!(state(OptimizerSpec::RowwiseAdagrad { lr, eps, initial_accumulator }), [0.5]);
        assert_eq!(state(OptimizerSpec::Adam { lr, beta1, beta2, eps }), [0.0; 4]);
        assert_eq!(state(OptimizerSpec::RowwiseAdam { lr, beta1, beta2, eps }), [0.0; 3]);
        let ftrl = OptimizerSpec::Ftrl { lr, beta: 1.0, l1: 0.0, l2: 0.0, initial_accumulator };
        assert_eq!(state(ftrl), [0.0, 0.0, 0.5, 0.5]);
    }

    #[test]
    fn a_wrong_parameter_is_named_with_its_value_and_what_it_must_be() {
        let (lr, eps) = (0.1, 1e-8);
        let adam = |beta1, beta2, eps| OptimizerSpec::RowwiseAdam { lr, beta1, beta2, eps };
        let ftrl =
            |beta, l1, l2, initial_accumulator| OptimizerSpec::Ftrl { lr, beta, l1, l2, initial_accumulator };
        for right in [adam(0.0, 0.0, 0.0), ftrl(1.0, 0.0, 0.0, 0.0), ftrl(0.0, 0.0, 0.0, 0.1)] {
            assert_eq!(right.validate(), Ok(()), "{right:?}");
        }
        for (wrong, says) in [
            (OptimizerSpec::Sgd { lr: -1.0 }, "optimizer lr must be a finite number >= 0, got -1"),
            (
                OptimizerSpec::MomentumSgd { lr, momentum: 0.0, nesterov: false },
                "optimizer momentum must be above 0 and below 1 (use SGD for 0), got 0",
            ),
            (
                OptimizerSpec::MomentumSgd { lr, momentum: 1.0, nesterov: true },
                "optimizer momentum must be above 0 and below 1 (use SGD for 0), got 1",
            ),
            (adam(-0.1, 0.9, eps), "optimizer beta1 must be in [0, 1), got -0.1"),
            (adam(0.9, 1.0, eps), "optimizer beta2 must be in [0, 1), got 1"),
            (adam(0.9, 0.9, f32::NAN), "optimizer eps must be a finite number >= 0, got NaN"),
            (ftrl(-1.0, 0.0, 0.0, 0.1), "optimizer beta must be a finite number >= 0, got -1"),
            (ftrl(1.0, -1.0, 0.0, 0.0), "optimizer l1 must be a finite number >= 0, got -1"),
            (ftrl(1.0, 0.0, f32::INFINITY, 0.0), "optimizer l2 must be a finite number >= 0, got inf"),
            (
                ftrl(1.0, 0.0, 0.0, -0.5),
                "optimizer initial_accumulator must be a finite number >= 0, got -0.5",
            ),
            (ftrl(0.0, 0.0, 1.0, 0.0), "optimizer beta must be > 0 when initial_accumulator is 0, got 0"),
        ] {
            assert_eq!(wrong.validate().unwrap_err().to_string(), says);
        }
    }
}
