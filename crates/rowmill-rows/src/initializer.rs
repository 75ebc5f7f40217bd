//! How rows are born.

use serde::{Deserialize, Serialize};

/// The distribution a missing row's weights are drawn from. The draw is a pure function of
/// (seed, category, id, element), so results do not depend on arrival order or rank count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Initializer {
    /// All weights 0.
    Zeros,
    /// All weights `value`.
    Constant {
        /// The weight.
        value: f32,
    },
    /// Uniform in `[low, high)`.
    Uniform {
        /// Smallest weight.
        low: f32,
        /// Upper bound, excluded.
        high: f32,
    },
    /// Normal.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
    /// Normal, redrawn (by inverse CDF, not by rejection) inside `[low, high]`.
    TruncatedNormal {
        /// Mean of the untruncated distribution.
        mean: f32,
        /// Standard deviation of the untruncated distribution.
        std: f32,
        /// Smallest weight.
        low: f32,
        /// Largest weight.
        high: f32,
    },
}
