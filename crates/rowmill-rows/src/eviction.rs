//! Eviction: which rows a table removes for good.

use serde::{Deserialize, Serialize};

use crate::SpecError;
use crate::spec::check;

/// Largest number of steps, seconds or rows of a rule: no counter exceeds it.
const COUNT_MAX: u64 = 1 << 62;

/// When and which rows of a table are removed for good, together with their optimizer state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eviction {
    /// Selects the rows to remove.
    pub rule: EvictionRule,
    /// Optimizer steps of the table between evictions. 0: evict only on request.
    pub every: u64,
}

/// Selects the rows that an eviction removes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EvictionRule {
    /// Rows last changed more than `steps` optimizer steps of the table ago.
    TtlSteps {
        /// Time to live, in optimizer steps.
        steps: u64,
    },
    /// Rows last changed more than `seconds` of event time ago.
    TtlSeconds {
        /// Time to live, in seconds.
        seconds: u64,
    },
    /// Rows changed by the fewest steps, until `max_rows` rows are left.
    LeastFrequent {
        /// Number of rows to keep.
        max_rows: u64,
    },
    /// Rows with the lowest score, until `max_rows` rows are left.
    LowestScore {
        /// Number of rows to keep.
        max_rows: u64,
    },
    /// Rows whose weights have the lowest L2 norm, until `max_rows` rows are left.
    LowestNorm {
        /// Number of rows to keep.
        max_rows: u64,
    },
    /// Rows whose weights have an L2 norm below `norm`.
    NormBelow {
        /// Least norm to keep.
        norm: f32,
    },
}

impl EvictionRule {
    /// Whether the rule reads a stamp that rows must carry.
    pub fn needs_stamp(&self) -> bool {
        !matches!(self, Self::LowestNorm { .. } | Self::NormBelow { .. })
    }
}

impl Eviction {
    /// Check every field; the error names the first invalid one.
    ///
    /// # Errors
    /// [`SpecError`] with the field, its permitted values and its value.
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        if self.every > COUNT_MAX {
            return Err(SpecError::Count { field: "eviction every", least: 0, value: self.every });
        }
        let positive = |field, value| {
            if (1..=COUNT_MAX).contains(&value) {
                Ok(())
            } else {
                Err(SpecError::Count { field, least: 1, value })
            }
        };
        match self.rule {
            EvictionRule::TtlSteps { steps } => positive("eviction steps", steps),
            EvictionRule::TtlSeconds { seconds } => positive("eviction seconds", seconds),
            EvictionRule::LeastFrequent { max_rows }
            | EvictionRule::LowestScore { max_rows }
            | EvictionRule::LowestNorm { max_rows } => positive("eviction max_rows", max_rows),
            EvictionRule::NormBelow { norm } => {
                check("eviction below", "a finite number > 0", norm, norm > 0.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_rule_is_named_with_its_value_and_what_it_must_be() {
        let rule = |rule| Eviction { rule, every: 0 }.validate();
        for right in [
            EvictionRule::TtlSteps { steps: 1 },
            EvictionRule::TtlSeconds { seconds: COUNT_MAX },
            EvictionRule::LowestNorm { max_rows: 10 },
            EvictionRule::NormBelow { norm: 1e-3 },
        ] {
            assert_eq!(rule(right), Ok(()), "{right:?}");
        }
        for (wrong, says) in [
            (EvictionRule::TtlSteps { steps: 0 }, "eviction steps must be between 1 and 2^62, got 0"),
            (EvictionRule::TtlSeconds { seconds: 0 }, "eviction seconds must be between 1 and 2^62, got 0"),
            (
                EvictionRule::LeastFrequent { max_rows: 0 },
                "eviction max_rows must be between 1 and 2^62, got 0",
            ),
            (EvictionRule::NormBelow { norm: 0.0 }, "eviction below must be a finite number > 0, got 0"),
            (
                EvictionRule::NormBelow { norm: f32::NAN },
                "eviction below must be a finite number > 0, got NaN",
            ),
        ] {
            assert_eq!(rule(wrong).unwrap_err().to_string(), says);
        }
        let often = Eviction { rule: EvictionRule::TtlSteps { steps: 1 }, every: u64::MAX };
        assert_eq!(
            often.validate().unwrap_err().to_string(),
            format!("eviction every must be between 0 and 2^62, got {}", u64::MAX)
        );
    }
}
