//! Specs of tables, and of the groups that tables share.

use serde::{Deserialize, Serialize};

use crate::{Admission, Dtype, Eviction, Initializer, OptimizerSpec, RowLayout};

/// Most weights per row. Feature vectors of 27 KiB with two moments fit.
const DIM_MAX: u32 = 65_536;

/// How far reads of a row may run ahead of its updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StalenessBound {
    /// A get may proceed while at most this many gets of the row are outstanding. 0 is bulk-synchronous.
    Steps(u8),
    /// Asynchronous: no clocks are kept.
    Infinite,
}

/// The ids that a table may hold. This decides how the table is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdRange {
    /// Any 64-bit id. Indexed by hash.
    Sparse,
    /// Ids in `[0, rows)`, as in a converted `nn.EmbeddingBag`. Indexed directly by id.
    Dense {
        /// Number of ids.
        rows: u64,
    },
}

/// Settings of a table, fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Weights per row.
    pub dim: u32,
    /// Type of the weights.
    pub dtype: Dtype,
    /// Optimizer that updates rows in place.
    pub optimizer: OptimizerSpec,
    /// Initial weights of new rows.
    pub initializer: Initializer,
    /// Staleness bound of every row of the table.
    pub staleness: StalenessBound,
    /// The ids that the table may hold.
    pub ids: IdRange,
    /// Which rows are removed for good. None: only deleted rows are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Eviction>,
    /// Which ids get a row. None: every id does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
}

/// What tables must agree on to share a group: one row layout, one optimizer and one initializer (`FusedRec`,
/// Section 3, groups categories by the same three).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupSpec {
    /// Weights per row.
    pub dim: u32,
    /// Type of the weights.
    pub dtype: Dtype,
    /// Optimizer, with its learning rate set to 0: tables of one group may have different rates.
    pub optimizer: OptimizerSpec,
    /// Initial weights of new rows.
    pub initializer: Initializer,
    /// Whether rows carry a stamp, which some eviction rules read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stamped: bool,
}

/// An invalid spec.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// `dim` is 0 or too large.
    #[error("dim must be between 1 and {DIM_MAX}, got {0}")]
    Dim(u32),
    /// No element type has this name.
    #[error("dtype must be \"fp32\", \"bf16\" or \"split-bf16\", got {0:?}")]
    Dtype(String),
    /// A hyper-parameter is outside its range.
    #[error("{field} must be {expected}, got {value}")]
    Field {
        /// Name of the parameter.
        field: &'static str,
        /// Permitted values.
        expected: &'static str,
        /// The value.
        value: f32,
    },
    /// A dense id range that is empty or exceeds 31-bit row numbers.
    #[error(
        "a range [0, N) of ids must have N between 1 and 2^31, got {0}; a table without a range takes any 64-bit id"
    )]
    DenseRows(u64),
    /// A number of steps, seconds or rows is outside its range.
    #[error("{field} must be between {least} and 2^62, got {value}")]
    Count {
        /// Name of the parameter.
        field: &'static str,
        /// Least permitted value.
        least: u64,
        /// The value.
        value: u64,
    },
    /// `min_count` is below 2, which admits every id, or above the largest count of a sketch.
    #[error("admission min_count must be between 2 and 255, got {0}: omit admission to admit every id")]
    MinCount(u8),
    /// The size of a sketch is not permitted.
    #[error("admission bytes must be a power of two from 1 KiB to 1 GiB, got {0}")]
    SketchBytes(u64),
}

impl TableSpec {
    /// The group this table belongs to.
    pub fn group(&self) -> GroupSpec {
        GroupSpec {
            dim: self.dim,
            dtype: self.dtype,
            optimizer: self.optimizer.with_lr(0.0),
            initializer: self.initializer,
            stamped: self.eviction.is_some_and(|eviction| eviction.rule.needs_stamp()),
        }
    }

    /// Check every field; the error names the first invalid one.
    ///
    /// # Errors
    /// [`SpecError`] with the field, its permitted values and its value.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.dim == 0 || self.dim > DIM_MAX {
            return Err(SpecError::Dim(self.dim));
        }
        if let IdRange::Dense { rows } = self.ids
            && (rows == 0 || rows > 1 << 31)
        {
            return Err(SpecError::DenseRows(rows));
        }
        self.optimizer.validate()?;
        if let Some(eviction) = &self.eviction {
            eviction.validate()?;
        }
        if let Some(admission) = &self.admission {
            admission.validate()?;
        }
        match self.initializer {
            Initializer::Zeros => Ok(()),
            Initializer::Constant { value } => check("initializer value", "a finite number", value, true),
            Initializer::Uniform { low, high } => {
                check("initializer low", "a finite number", low, true)?;
                check("initializer high", "greater than low", high, high > low)
            }
            Initializer::Normal { mean, std } => {
                check("initializer mean", "a finite number", mean, true)?;
                not_negative("initializer std", std)
            }
            Initializer::TruncatedNormal { mean, std, low, high } => {
                check("initializer mean", "a finite number", mean, true)?;
                check("initializer std", "a finite number > 0", std, std > 0.0)?;
                check("initializer low", "a finite number", low, true)?;
                check("initializer high", "greater than low", high, high > low)
            }
        }
    }
}

impl GroupSpec {
    /// Check every field.
    ///
    /// # Errors
    /// As [`TableSpec::validate`].
    pub fn validate(&self) -> Result<(), SpecError> {
        let Self { dim, dtype, optimizer, initializer, stamped: _ } = *self;
        let (staleness, ids) = (StalenessBound::Infinite, IdRange::Sparse);
        TableSpec { dim, dtype, optimizer, initializer, staleness, ids, eviction: None, admission: None }
            .validate()
    }

    /// The layout of the group's rows.
    pub fn layout(&self) -> RowLayout {
        RowLayout::new(self.dim as usize, self.dtype, &self.optimizer, self.stamped)
    }
}

/// Return an error that names the field, unless the value is `ok` and finite.
pub(crate) fn check(
    field: &'static str,
    expected: &'static str,
    value: f32,
    ok: bool,
) -> Result<(), SpecError> {
    if ok && value.is_finite() { Ok(()) } else { Err(SpecError::Field { field, expected, value }) }
}

pub(crate) fn not_negative(field: &'static str, value: f32) -> Result<(), SpecError> {
    check(field, "a finite number >= 0", value, value >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EvictionRule;

    fn spec() -> TableSpec {
        TableSpec {
            dim: 8,
            dtype: Dtype::F32,
            optimizer: OptimizerSpec::Sgd { lr: 0.1 },
            initializer: Initializer::Zeros,
            staleness: StalenessBound::Steps(0),
            ids: IdRange::Sparse,
            eviction: None,
            admission: None,
        }
    }

    #[test]
    fn rows_with_and_without_a_stamp_are_in_different_groups() {
        let with = |rule| TableSpec { eviction: Some(Eviction { rule, every: 0 }), ..spec() };
        let ttl = with(EvictionRule::TtlSteps { steps: 5 });
        assert_eq!(ttl.group(), with(EvictionRule::LeastFrequent { max_rows: 5 }).group());
        assert_ne!(ttl.group(), spec().group());
        assert_eq!(with(EvictionRule::NormBelow { norm: 1.0 }).group(), spec().group());
        let stamp = ttl.group().layout().stamp_offset().unwrap();
        assert_eq!((stamp, ttl.group().layout().stride), (32, 48));
    }

    #[test]
    fn learning_rate_does_not_split_groups_but_dim_and_dtype_do() {
        let mut other = spec();
        other.optimizer = OptimizerSpec::Sgd { lr: 0.5 };
        assert_eq!(spec().group(), other.group());
        other.dim = 16;
        assert_ne!(spec().group(), other.group());
        other = TableSpec { dtype: Dtype::Bf16, ..spec() };
        assert_ne!(spec().group(), other.group());
    }

    #[test]
    fn a_wrong_field_is_named_with_its_value() {
        let mut wrong = spec();
        wrong.initializer = Initializer::Uniform { low: 1.0, high: 0.5 };
        assert_eq!(
            wrong.validate().unwrap_err().to_string(),
            "initializer high must be greater than low, got 0.5"
        );
        wrong = spec();
        wrong.optimizer = OptimizerSpec::Sgd { lr: f32::NAN };
        assert!(wrong.validate().unwrap_err().to_string().contains("optimizer lr"));
        wrong = spec();
        wrong.dim = 0;
        assert!(wrong.validate().is_err());
    }
}
