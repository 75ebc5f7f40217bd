//! Divide a batch of many features, each with any number of ids, into the bags of single features.

use std::borrow::Cow;

use crate::{IdBag, Pooling};

/// Ids, feature by feature: bag `b` of feature `f` is
/// `ids[offsets[f * bags + b]..offsets[f * bags + b + 1]]`.
#[derive(Clone, Copy, Debug)]
pub struct Ragged<'a> {
    ids: &'a [u64],
    offsets: &'a [i64],
    weights: Option<&'a [f32]>,
    bags: usize,
}

/// The bags of one feature.
#[derive(Clone, Debug)]
pub struct FeatureBags<'a> {
    /// The ids, bag by bag.
    pub ids: &'a [u64],
    /// `bags + 1` offsets, the first of them 0.
    pub offsets: Cow<'a, [i64]>,
    /// One factor per id.
    pub weights: Option<&'a [f32]>,
}

impl FeatureBags<'_> {
    /// What to pool: the mean of each bag, or its sum, without the padding id.
    pub fn bag(&self, padding: Option<i64>, is_mean: bool) -> IdBag<'_> {
        IdBag {
            ids: self.ids,
            offsets: &self.offsets,
            weights: self.weights,
            padding: padding.map(|id| id as u64),
            pooling: if is_mean { Pooling::Mean } else { Pooling::Sum },
        }
    }
}

impl<'a> Ragged<'a> {
    /// A batch of features with `bags` bags each.
    ///
    /// # Errors
    /// Lengths of offsets, ids or weights do not agree.
    pub fn new(
        ids: &'a [u64],
        offsets: &'a [i64],
        weights: Option<&'a [f32]>,
        bags: usize,
    ) -> Result<Self, String> {
        let (&[first, ..], &[.., last]) = (offsets, offsets) else {
            return Err("offsets must have one entry more than there are bags, got none".into());
        };
        if first != 0 || usize::try_from(last) != Ok(ids.len()) {
            let count = ids.len();
            return Err(format!(
                "offsets must run from 0 to the number of ids ({count}), got {first}..{last}"
            ));
        }
        match weights {
            Some(weights) if weights.len() != ids.len() => {
                Err(format!("weights must have one entry per id ({}), got {}", ids.len(), weights.len()))
            }
            _ => Ok(Self { ids, offsets, weights, bags }),
        }
    }

    /// The bags of one feature.
    ///
    /// # Errors
    /// The feature is not in the batch, or its offsets decrease.
    pub fn feature(&self, feature: usize) -> Result<FeatureBags<'a>, String> {
        let range =
            feature.checked_mul(self.bags).and_then(|begin| Some(begin..begin.checked_add(self.bags)?));
        let ends = range.and_then(|range| self.offsets.get(range.start..=range.end)).ok_or_else(|| {
            let (count, bags) = (self.offsets.len(), self.bags);
            format!("feature {feature} of {bags} bags each is not among {count} offsets")
        })?;
        let (begin, end) = (ends[0], ends[self.bags]);
        let place = match (usize::try_from(begin), usize::try_from(end)) {
            (Ok(begin), Ok(end)) if begin <= end && end <= self.ids.len() => begin..end,
            _ => return Err(format!("offsets must not decrease, got {begin}..{end} for feature {feature}")),
        };
        Ok(FeatureBags {
            ids: &self.ids[place.clone()],
            offsets: if begin == 0 {
                Cow::Borrowed(ends)
            } else {
                ends.iter().map(|&offset| offset.wrapping_sub(begin)).collect()
            },
            weights: self.weights.map(|weights| &weights[place]),
        })
    }
}
