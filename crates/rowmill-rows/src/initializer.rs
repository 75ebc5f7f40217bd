//! Initial weights of rows.

use serde::{Deserialize, Serialize};

/// The distribution of a new row's weights. Each weight is a pure function of (seed, category, id, element),
/// so it does not depend on the order of arrival or the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Initializer {
    /// All weights are 0.
    Zeros,
    /// All weights are `value`.
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
    /// Normal distribution.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
    /// Normal distribution truncated to `[low, high]`, drawn by inverse CDF.
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
