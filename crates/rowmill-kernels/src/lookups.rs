//! Lookups after their ids became unique rows.

use rowmill_rows::Pooling;

/// The address of a row, which begins with its weights, wherever it lies: slot memory, scratch or a buffer of
/// initial values. A multiple of 4; what lies there depends on the type of the weights.
pub type RowPtr = *const f32;

/// The unique index of a lookup that stands for nothing (padding): it adds nothing to its bag and does
/// not count in a mean.
pub const SKIP: u32 = u32::MAX;

/// `B` bags of lookups: bag `b` looks up the unique rows `inverse[offsets[b]..offsets[b + 1]]`.
///
/// `offsets` may begin behind 0 and end before the last lookup, so that threads can share one set of
/// lookups by taking pieces of `offsets`.
#[derive(Clone, Copy, Debug)]
pub struct Lookups<'a> {
    /// Unique index of each lookup, or [`SKIP`].
    pub inverse: &'a [u32],
    /// `B + 1` non-decreasing positions into `inverse`.
    pub offsets: &'a [i64],
    /// One factor per lookup (sum pooling only).
    pub weights: Option<&'a [f32]>,
    /// How a bag becomes one vector.
    pub pooling: Pooling,
}

impl Lookups<'_> {
    /// Number of bags.
    pub fn bags(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Assert what every kernel relies on: offsets inside the lookups, weights for sums only.
    ///
    /// The order of the offsets is the caller's to check (`IdBag::validate`): it costs a pass.
    pub(crate) fn assert_shape(&self) {
        if let (Some(&first), Some(&last)) = (self.offsets.first(), self.offsets.last()) {
            assert!(first >= 0 && last as usize <= self.inverse.len(), "offsets {first}..{last}");
        }
        if let Some(weights) = self.weights {
            assert_eq!(weights.len(), self.inverse.len(), "one weight per lookup");
            assert_eq!(self.pooling, Pooling::Sum, "weights are defined for sums only");
        }
        debug_assert!(self.offsets.is_sorted(), "offsets must not decrease");
    }

    /// Lookups of bag `bag` that are not padding.
    #[inline(always)]
    pub(crate) fn count(&self, bag: usize) -> usize {
        let (begin, end) = (self.offsets[bag] as usize, self.offsets[bag + 1] as usize);
        self.inverse[begin..end].iter().filter(|&&unique| unique != SKIP).count()
    }
}
