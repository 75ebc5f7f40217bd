//! The raw columns that a client may send instead of the inputs of a model.

use serde::Serialize;

use super::Elements;
use crate::{DType, Per};

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnKind {
    /// Numbers, one per row.
    Number,
    /// Ids, one per row.
    Id,
    /// Ids of histories, one list behind the other.
    Ids,
    /// Where the lists begin: one number per row, and the number of ids.
    Offsets,
}

/// A column, or one part of a history.
#[derive(Clone, Debug)]
pub struct ColumnSpec {
    /// Its name, of a history with `.values` or `.offsets` behind it.
    pub name: String,
    /// Its kind of values.
    pub kind: ColumnKind,
    /// How often a request gives it.
    pub per: Per,
}

impl ColumnSpec {
    /// Types of elements that it may have; a client that does not care takes the first.
    pub(crate) fn accepted(&self) -> &'static [Elements] {
        use DType::{Float32, Float64, Int8, Int16, Int32, Int64, UInt8};
        use Elements::{Numbers, Texts};
        match self.kind {
            ColumnKind::Number => &[
                Numbers(Float32),
                Numbers(Float64),
                Numbers(Int64),
                Numbers(Int32),
                Numbers(Int16),
                Numbers(Int8),
                Numbers(UInt8),
            ],
            ColumnKind::Id | ColumnKind::Ids => &[Numbers(Int64), Texts],
            ColumnKind::Offsets => &[Numbers(Int64), Numbers(Int32)],
        }
    }
}
