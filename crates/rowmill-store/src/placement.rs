//! Where the vectors of a fused lookup lie among floats, and later their gradients.

use crate::StoreError;

/// Bag `b` of feature `f` lies at `firsts[f] + b * stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement {
    /// Side by side: a line for each bag, in it the vectors of feature after feature.
    Columns {
        /// Floats from one line to the next.
        row_stride: usize,
    },
    /// One after the other: all vectors of a feature, then those of the next.
    InTurn,
}

impl Placement {
    /// Floats from one bag of a feature to the next, of vectors of `dim` floats.
    pub(crate) fn stride(self, dim: usize) -> usize {
        match self {
            Self::Columns { row_stride } => row_stride,
            Self::InTurn => dim,
        }
    }

    /// The first float of every feature, given how many bags each has.
    pub(crate) fn firsts(self, bags: impl Iterator<Item = usize>, dim: usize) -> Vec<usize> {
        let begin = |next: &mut usize, bags: usize| {
            let first = *next;
            *next += match self {
                Self::Columns { .. } => dim,
                Self::InTurn => bags * dim,
            };
            Some(first)
        };
        bags.scan(0, begin).collect()
    }

    /// The place of a float among the first floats of features.
    pub(crate) fn within(self, position: usize) -> usize {
        match self {
            Self::Columns { row_stride } => position % row_stride.max(1),
            Self::InTurn => position,
        }
    }

    /// Check that `len` floats have room for the bags of every feature.
    pub(crate) fn check(
        self,
        argument: &'static str,
        len: usize,
        bags: impl Iterator<Item = usize> + Clone,
        dim: usize,
    ) -> Result<(), StoreError> {
        let features = bags.clone().count();
        let (expected, why) = match self {
            Self::Columns { row_stride } => {
                let (lines, width) = (bags.max().unwrap_or(0), features * dim);
                let needed = if lines == 0 { 0 } else { (lines - 1) * row_stride + width };
                if len >= needed && (lines <= 1 || row_stride >= width) {
                    return Ok(());
                }
                let why = format!("{lines} bags of {features} features of {dim} floats");
                (needed.max(lines * width), why)
            }
            Self::InTurn => {
                let rows: usize = bags.sum();
                if len == rows * dim {
                    return Ok(());
                }
                (rows * dim, format!("{rows} rows of {dim} floats"))
            }
        };
        Err(StoreError::Length { argument, got: len, expected, why })
    }
}
