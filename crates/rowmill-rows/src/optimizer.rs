//! Which optimizer updates a row, and how much state it keeps beside the weights.

use serde::{Deserialize, Serialize};

use crate::SpecError;
use crate::spec::{check, not_negative};

/// An optimizer and its hyper-parameters. The learning rate is the default of the table; every update
/// may name another one (schedules), so it is not part of a group's identity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OptimizerSpec {
    /// `w -= lr * g`. No state.
    Sgd {
        /// Learning rate.
        lr: f32,
    },
    /// SGD with momentum on touched rows: `v = momentum * v + g; w -= lr * v` (dampening 0). Absent rows
    /// stand still. State: `dim` floats.
    MomentumSgd {
        /// Learning rate.
        lr: f32,
        /// Decay of the velocity.
        momentum: f32,
        /// Take Nesterov's step instead: `w -= lr * (g + momentum * v)`.
        nesterov: bool,
    },
    /// `s += g*g; w -= lr * g / (sqrt(s) + eps)`. State: `dim` floats.
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        eps: f32,
        /// Value the accumulator is born with.
        initial_accumulator: f32,
    },
    /// Adagrad with one accumulator per row: `s += mean(g*g)`. State: 1 float.
    RowwiseAdagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        eps: f32,
        /// Value the accumulator is born with.
        initial_accumulator: f32,
    },
    /// Adam on touched rows (as `torch.optim.SparseAdam`): moments of absent rows stand still, the bias
    /// correction counts the table's steps. State: `2 * dim` floats.
    Adam {
        /// Learning rate.
        lr: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root.
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
        /// Added to the root.
        eps: f32,
    },
}

impl OptimizerSpec {
    /// Floats of state a row of `dim` weights carries.
    pub fn state_floats(&self, dim: usize) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::MomentumSgd { .. } | Self::Adagrad { .. } => dim,
            Self::RowwiseAdagrad { .. } => 1,
            Self::Adam { .. } => 2 * dim,
            Self::RowwiseAdam { .. } => dim + 1,
        }
    }

    /// The value every float of a new row's state is born with.
    pub fn initial_state(&self) -> f32 {
        match *self {
            Self::Adagrad { initial_accumulator, .. } | Self::RowwiseAdagrad { initial_accumulator, .. } => {
                initial_accumulator
            }
            Self::Sgd { .. } | Self::MomentumSgd { .. } | Self::Adam { .. } | Self::RowwiseAdam { .. } => 0.0,
        }
    }

    /// The table's default learning rate.
    pub fn lr(&self) -> f32 {
        match *self {
            Self::Sgd { lr }
            | Self::MomentumSgd { lr, .. }
            | Self::Adagrad { lr, .. }
            | Self::RowwiseAdagrad { lr, .. }
            | Self::Adam { lr, .. }
            | Self::RowwiseAdam { lr, .. } => lr,
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
            | Self::RowwiseAdam { lr, .. } => {
                *lr = rate;
            }
        }
        self
    }

    /// Check every hyper-parameter; the error names the first that is wrong.
    ///
    /// # Errors
    /// [`SpecError::Field`] with the parameter, what it must be and what it was.
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        not_negative("optimizer lr", self.lr())?;
        match *self {
            Self::Sgd { .. } => Ok(()),
            Self::MomentumSgd { momentum, .. } => {
                let expected = "above 0 and below 1 (SGD does without)";
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
        }
    }
}

fn decay(field: &'static str, value: f32) -> Result<(), SpecError> {
    check(field, "in [0, 1)", value, (0.0..1.0).contains(&value))
}
