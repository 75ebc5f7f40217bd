//! What a table is made of, and what tables must agree on to share a group.

use serde::{Deserialize, Serialize};

use crate::{Dtype, Initializer, OptimizerSpec, RowLayout};

/// Widest row the store takes, in weights: 27 KiB feature vectors with two moments fit.
const DIM_MAX: u32 = 65_536;

/// How far a row's readers may run ahead of its writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StalenessBound {
    /// A get may proceed while the number of outstanding gets of that row is at most this
    /// (0 is bulk-synchronous).
    Steps(u8),
    /// Asynchronous: no clocks are kept.
    Infinite,
}

/// The set of ids a table may hold, which decides how it is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdRange {
    /// Any 64-bit id: hash-indexed.
    Sparse,
    /// Ids `0..rows` (every converted `nn.EmbeddingBag`): indexed directly by id.
    Dense {
        /// Number of ids.
        rows: u64,
    },
}

/// Everything a table is created with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Weights per row.
    pub dim: u32,
    /// Element type.
    pub dtype: Dtype,
    /// Optimizer applied in place to rows.
    pub optimizer: OptimizerSpec,
    /// How missing rows are born.
    pub initializer: Initializer,
    /// Staleness bound of every row of the table.
    pub staleness: StalenessBound,
    /// Which ids the table may hold.
    pub ids: IdRange,
}

/// What tables agree on to share a group: rows of one layout, one optimizer and one initializer
/// (`FusedRec`, Section 3, groups categories by the same triple).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupSpec {
    /// Weights per row.
    pub dim: u32,
    /// Element type.
    pub dtype: Dtype,
    /// Optimizer, with its learning rate set to 0: rates differ between tables of one group.
    pub optimizer: OptimizerSpec,
    /// How missing rows are born.
    pub initializer: Initializer,
}

/// A spec that cannot be stored.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// `dim` is 0 or too large.
    #[error("dim must be between 1 and {DIM_MAX}, got {0}")]
    Dim(u32),
    /// A hyper-parameter is outside its range.
    #[error("{field} must be {expected}, got {value}")]
    Field {
        /// Name of the parameter.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it was.
        value: f32,
    },
    /// A dense id range that 31-bit row numbers cannot address.
    #[error("rows of a dense table must be between 1 and 2^31, got {0}; use sparse ids for more")]
    DenseRows(u64),
}

impl TableSpec {
    /// The group this table belongs to.
    pub fn group(&self) -> GroupSpec {
        GroupSpec {
            dim: self.dim,
            dtype: self.dtype,
            optimizer: self.optimizer.with_lr(0.0),
            initializer: self.initializer,
        }
    }

    /// Check every field; the error names the first that is wrong.
    ///
    /// # Errors
    /// [`SpecError`] with the field, what it must be and what it was.
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
        let Self { dim, dtype, optimizer, initializer } = *self;
        let (staleness, ids) = (StalenessBound::Infinite, IdRange::Sparse);
        TableSpec { dim, dtype, optimizer, initializer, staleness, ids }.validate()
    }

    /// The layout of the group's rows.
    pub fn layout(&self) -> RowLayout {
        RowLayout::new(self.dim as usize, self.dtype, &self.optimizer)
    }
}

/// An error that names the field, unless it is `ok` and finite.
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

    fn spec() -> TableSpec {
        TableSpec {
            dim: 8,
            dtype: Dtype::F32,
            optimizer: OptimizerSpec::Sgd { lr: 0.1 },
            initializer: Initializer::Zeros,
            staleness: StalenessBound::Steps(0),
            ids: IdRange::Sparse,
        }
    }

    #[test]
    fn learning_rate_does_not_split_groups_but_dim_does() {
        let mut other = spec();
        other.optimizer = OptimizerSpec::Sgd { lr: 0.5 };
        assert_eq!(spec().group(), other.group());
        other.dim = 16;
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
