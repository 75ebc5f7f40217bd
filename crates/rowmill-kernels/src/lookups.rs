//! Lookups whose ids have been replaced by indices of unique rows.

use rowmill_rows::Pooling;

/// The address of a row, which starts with its weights. It may point to slot memory, scratch memory or a
/// buffer of initial values. It is a multiple of 4; the element type depends on the table.
pub type RowPtr = *const f32;

/// The unique index of a padding lookup, which adds nothing to its bag and does not count in a mean.
pub const SKIP: u32 = u32::MAX;

/// `B` bags of lookups: bag `b` looks up the unique rows `inverse[offsets[b]..offsets[b + 1]]`.
///
/// `offsets` may start after 0 and end before the last lookup, so that threads can share one set of lookups
/// by taking parts of `offsets`.
#[derive(Clone, Copy, Debug)]
pub struct Lookups<'a> {
    /// Unique index of each lookup, or [`SKIP`].
    pub inverse: &'a [u32],
    /// `B + 1` non-decreasing positions in `inverse`.
    pub offsets: &'a [i64],
    /// One factor per lookup; only for sum pooling.
    pub weights: Option<&'a [f32]>,
    /// How a bag is pooled into one vector.
    pub pooling: Pooling,
}

impl Lookups<'_> {
    /// Number of bags.
    pub fn bags(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Assert what every kernel relies on: offsets within the lookups, and weights only for sums.
    ///
    /// The caller must check that offsets ascend (`IdBag::validate`), because that costs a pass over them.
    pub(crate) fn assert_shape(&self) {
        assert_shape(self.inverse.len(), self.offsets, self.weights, self.pooling);
    }

    /// Number of lookups of bag `bag`, without padding.
    #[inline(always)]
    pub(crate) fn count(&self, bag: usize) -> usize {
        let (begin, end) = (self.offsets[bag] as usize, self.offsets[bag + 1] as usize);
        self.inverse[begin..end].iter().filter(|&&unique| unique != SKIP).count()
    }
}

/// As [`Lookups::assert_shape`], for `lookups` lookups that are given in any way.
pub(crate) fn assert_shape(lookups: usize, offsets: &[i64], weights: Option<&[f32]>, pooling: Pooling) {
    if let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) {
        assert!(first >= 0 && last as usize <= lookups, "offsets {first}..{last} of {lookups} lookups");
    }
    if let Some(weights) = weights {
        assert_eq!(weights.len(), lookups, "weights must have one entry per lookup");
        assert_eq!(pooling, Pooling::Sum, "weights are defined for sums only");
    }
    debug_assert!(offsets.is_sorted(), "offsets must not decrease");
}
