//! Bags of ids, as in `nn.EmbeddingBag`.

/// How the rows of a bag are pooled into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Sum of the rows, each times its weight if there are weights.
    Sum,
    /// Mean of the rows; 0 for an empty bag.
    Mean,
}

/// `B` bags of ids in one array: bag `b` is `ids[offsets[b]..offsets[b + 1]]`.
///
/// `offsets` has `B + 1` entries. An id equal to `padding` contributes nothing and does not count in a mean.
#[derive(Clone, Copy, Debug)]
pub struct IdBag<'a> {
    /// All ids, bag after bag.
    pub ids: &'a [u64],
    /// `B + 1` non-decreasing positions in `ids`, from 0 to `ids.len()`.
    pub offsets: &'a [i64],
    /// One factor per id; only for sum pooling.
    pub weights: Option<&'a [f32]>,
    /// The padding id, which contributes nothing.
    pub padding: Option<u64>,
    /// How a bag is pooled into one vector.
    pub pooling: Pooling,
}

/// A bag that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BagError {
    /// Offsets do not start at 0 or do not end at the number of ids.
    #[error("offsets must run from 0 to the number of ids ({ids}), got {first}..{last}")]
    Ends {
        /// Number of ids.
        ids: usize,
        /// First offset.
        first: i64,
        /// Last offset.
        last: i64,
    },
    /// Offsets decrease.
    #[error("offsets must not decrease: offsets[{position}] = {value} after {previous}")]
    Order {
        /// Position in `offsets`.
        position: usize,
        /// The offset at that position.
        value: i64,
        /// The offset before it.
        previous: i64,
    },
    /// The number of weights differs from the number of ids.
    #[error("per-sample weights must have one entry per id ({ids}), got {weights}")]
    Weights {
        /// Number of ids.
        ids: usize,
        /// Number of weights.
        weights: usize,
    },
    /// Weights were given with mean pooling.
    #[error("per-sample weights need sum pooling, got mean pooling")]
    WeightedMean,
}

impl IdBag<'_> {
    /// Number of bags.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether there are no bags.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Check offsets and weights.
    ///
    /// # Errors
    /// [`BagError`] for the first violation.
    pub fn validate(&self) -> Result<(), BagError> {
        let (first, last) = match (self.offsets.first(), self.offsets.last()) {
            (Some(&first), Some(&last)) => (first, last),
            _ => (-1, -1),
        };
        if first != 0 || last != self.ids.len() as i64 {
            return Err(BagError::Ends { ids: self.ids.len(), first, last });
        }
        // `is_sorted` is vectorised; the search for the position runs only for the error.
        if !self.offsets.is_sorted()
            && let Some(position) = self.offsets.windows(2).position(|pair| pair[1] < pair[0])
        {
            let (previous, value) = (self.offsets[position], self.offsets[position + 1]);
            return Err(BagError::Order { position: position + 1, value, previous });
        }
        if let Some(weights) = self.weights {
            if weights.len() != self.ids.len() {
                return Err(BagError::Weights { ids: self.ids.len(), weights: weights.len() });
            }
            if self.pooling == Pooling::Mean {
                return Err(BagError::WeightedMean);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bag<'a>(ids: &'a [u64], offsets: &'a [i64]) -> IdBag<'a> {
        IdBag { ids, offsets, weights: None, padding: None, pooling: Pooling::Sum }
    }

    #[test]
    fn offsets_are_checked() {
        assert_eq!(bag(&[1, 2], &[0, 0, 2]).validate(), Ok(()));
        assert!(matches!(bag(&[1, 2], &[0, 1]).validate(), Err(BagError::Ends { .. })));
        assert!(matches!(bag(&[1, 2], &[]).validate(), Err(BagError::Ends { .. })));
        assert!(matches!(bag(&[1, 2], &[0, 2, 1, 2]).validate(), Err(BagError::Order { position: 2, .. })));
    }

    #[test]
    fn weights_are_checked() {
        let mut weighted = bag(&[1, 2], &[0, 2]);
        weighted.weights = Some(&[1.0]);
        assert!(matches!(weighted.validate(), Err(BagError::Weights { .. })));
        weighted.weights = Some(&[1.0, 2.0]);
        weighted.pooling = Pooling::Mean;
        assert_eq!(weighted.validate(), Err(BagError::WeightedMean));
    }
}
