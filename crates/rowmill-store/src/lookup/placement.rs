//! Layout of the vectors of a fused lookup in its output, and of their gradients.

use crate::error::StoreError;

/// Bag `b` of feature `f` lies at `firsts[f] + b * stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement {
    /// Side by side: one line per bag, with the vectors of all features.
    Columns {
        /// Floats from one line to the next.
        row_stride: usize,
    },
    /// One after the other: all vectors of the first feature, then all of the next.
    InTurn,
}

impl Placement {
    /// Floats from one bag of a feature to the next, for vectors of `dim` floats.
    pub(crate) fn stride(self, dim: usize) -> usize {
        match self {
            Self::Columns { row_stride } => row_stride,
            Self::InTurn => dim,
        }
    }

    /// The first float of every feature, given the number of bags of each.
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

    /// The offset of a float within its line, or within all floats if there are no lines.
    pub(crate) fn within(self, position: usize) -> usize {
        match self {
            Self::Columns { row_stride } => position % row_stride.max(1),
            Self::InTurn => position,
        }
    }

    /// Check that `len` floats have room for the bags of all features.
    ///
    /// # Errors
    /// [`StoreError::Length`], or [`StoreError::Option`] if the number of floats overflows.
    pub(crate) fn check(
        self,
        argument: &'static str,
        len: usize,
        bags: impl Iterator<Item = usize> + Clone,
        dim: usize,
    ) -> Result<(), StoreError> {
        let features = bags.clone().count();
        let too_large = |option, got: usize, what: String| StoreError::Option {
            option,
            expected: format!("small enough for {what} to fit into memory"),
            got: got.to_string(),
        };
        let (expected, why) = match self {
            Self::Columns { row_stride } => {
                let lines = bags.max().unwrap_or(0);
                let why = || format!("{lines} bags of {features} features of {dim} floats");
                let width = features.checked_mul(dim).ok_or_else(|| too_large("dim", dim, why()))?;
                // Lines must not overlap.
                let stride = row_stride.max(width);
                let reach = |stride: usize| match lines {
                    0 => Some(0),
                    _ => (lines - 1).checked_mul(stride)?.checked_add(width),
                };
                let needed = reach(stride).ok_or_else(|| too_large("row_stride", row_stride, why()))?;
                if len >= needed && (lines <= 1 || row_stride >= width) {
                    return Ok(());
                }
                (needed, why())
            }
            Self::InTurn => {
                let rows: usize = bags.sum();
                let why = || format!("{rows} rows of {dim} floats");
                let expected = rows.checked_mul(dim).ok_or_else(|| too_large("dim", dim, why()))?;
                if len == expected {
                    return Ok(());
                }
                (expected, why())
            }
        };
        Err(StoreError::Length { argument, got: len, expected, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(placement: Placement, len: usize, bags: &[usize], dim: usize) -> Result<(), StoreError> {
        placement.check("out", len, bags.iter().copied(), dim)
    }

    #[test]
    fn the_last_bag_of_the_longest_feature_must_fit() {
        let columns = |row_stride| Placement::Columns { row_stride };
        assert!(check(columns(10), 28, &[3, 2], 4).is_ok());
        for (stride, len) in [(10, 27), (7, 28)] {
            let error = check(columns(stride), len, &[3, 2], 4).unwrap_err();
            assert!(matches!(error, StoreError::Length { argument: "out", .. }), "{error}");
        }
        // With one bag, the stride is not used.
        assert!(
            check(columns(0), 8, &[1, 1], 4).is_ok() && check(columns(usize::MAX), 8, &[1, 1], 4).is_ok()
        );
        assert!(check(Placement::InTurn, 20, &[3, 2], 4).is_ok());
        assert!(check(Placement::InTurn, 21, &[3, 2], 4).is_err());
    }

    #[test]
    fn a_product_that_wraps_around_is_refused() {
        // Three lines of 2^63 floats: the end of the last vector wraps around to float 4.
        let error = check(Placement::Columns { row_stride: 1 << 63 }, 4, &[3], 4).unwrap_err();
        assert!(error.to_string().contains("row_stride must be"), "{error}");
        assert!(error.to_string().contains("9223372036854775808"), "{error}");
        for placement in [Placement::Columns { row_stride: 4 }, Placement::InTurn] {
            let error = check(placement, 0, &[1 << 31, 1 << 31], 1 << 63).unwrap_err();
            assert!(error.to_string().contains("dim must be"), "{error}");
        }
    }
}
