//! Optimizers of cells that change rows.

use rowmill_rows::OptimizerSpec;

use crate::settings::Failure;

/// Learning rate, small enough that rows stay finite for hours.
const RATE: f32 = 1e-6;
const EPSILON: f32 = 1e-8;
/// Initial accumulator of a new row.
const ACCUMULATOR: f32 = 0.1;

/// An optimizer, for tables of the store and for peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Optimizer {
    Sgd,
    RowwiseAdagrad,
}

impl Optimizer {
    pub(crate) fn parse(name: &str) -> Result<Self, Failure> {
        match name {
            "sgd" => Ok(Self::Sgd),
            "rowwise-adagrad" => Ok(Self::RowwiseAdagrad),
            other => Err(format!("--optimizer {other:?}: use sgd or rowwise-adagrad").into()),
        }
    }

    /// The spec for a table.
    pub(crate) fn spec(self) -> OptimizerSpec {
        match self {
            Self::Sgd => OptimizerSpec::Sgd { lr: RATE },
            Self::RowwiseAdagrad => {
                OptimizerSpec::RowwiseAdagrad { lr: RATE, eps: EPSILON, initial_accumulator: ACCUMULATOR }
            }
        }
    }

    /// Floats of state after the weights of a row.
    pub(crate) fn state_floats(self) -> usize {
        match self {
            Self::Sgd => 0,
            Self::RowwiseAdagrad => 1,
        }
    }

    /// Initialise the state of a new row.
    pub(crate) fn initialize(self, row: &mut [f32]) {
        let weights = row.len() - self.state_floats();
        row[weights..].fill(ACCUMULATOR);
    }

    /// One step on a row of weights followed by state.
    pub(crate) fn step(self, row: &mut [f32], gradient: &[f32]) {
        let (weights, state) = row.split_at_mut(gradient.len());
        let rate = match self {
            Self::Sgd => RATE,
            Self::RowwiseAdagrad => {
                let squares: f32 = gradient.iter().map(|value| value * value).sum();
                state[0] += squares / gradient.len() as f32;
                RATE / (state[0].sqrt() + EPSILON)
            }
        };
        weights.iter_mut().zip(gradient).for_each(|(weight, value)| *weight -= rate * value);
    }
}
