//! The stamp of a row, which eviction reads: when the row was last changed, by how many steps, or its score.
//! The stamp lies behind the optimizer state, so it is saved together with the row.

use rowmill_rows::RowLayout;

/// How a change of rows updates their stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Store this step or second, unless the stamp is already later.
    At(u64),
    /// Add one step.
    Count,
}

impl Mark {
    /// Update the stamps of rows, if the layout has stamps.
    ///
    /// # Safety
    /// `rows` are rows of `layout`, and no other thread accesses them meanwhile.
    pub(crate) unsafe fn press(self, layout: &RowLayout, rows: &[*mut f32]) {
        let Some(offset) = layout.stamp_offset() else { return };
        for &row in rows {
            // SAFETY: by the contract of this function; the stamp lies inside a row of a layout with stamps.
            unsafe {
                let stamp = row.byte_add(offset).cast::<[u8; 8]>();
                let before = u64::from_le_bytes(stamp.read());
                let after = match self {
                    Self::At(now) => before.max(now),
                    Self::Count => before.saturating_add(1),
                };
                stamp.write(after.to_le_bytes());
            }
        }
    }
}

/// Set the stamp of a row that is being created, if the layout has stamps.
pub(crate) fn set_stamp(layout: &RowLayout, row: &mut [f32], value: u64) {
    if let Some(offset) = layout.stamp_offset() {
        let stamp = &mut row[offset / 4..][..2];
        stamp[0] = f32::from_bits(value as u32);
        stamp[1] = f32::from_bits((value >> 32) as u32);
    }
}

/// The stamp of a row; 0 if the layout has none.
pub(crate) fn stamp_of(layout: &RowLayout, row: &[f32]) -> u64 {
    layout.stamp_offset().map_or(0, |offset| {
        let stamp = &row[offset / 4..][..2];
        u64::from(stamp[0].to_bits()) | u64::from(stamp[1].to_bits()) << 32
    })
}

/// An integer that orders like the score: a smaller score has a lower rank.
pub(crate) fn rank_of_score(score: f32) -> u64 {
    let bits = score.to_bits();
    u64::from(if bits >> 31 == 0 { bits | 1 << 31 } else { !bits })
}

#[cfg(test)]
mod tests {
    use rowmill_rows::{Dtype, OptimizerSpec};

    use super::*;

    #[test]
    fn a_stamp_keeps_all_its_bits_beside_weights_and_state() {
        let optimizer = OptimizerSpec::RowwiseAdagrad { lr: 0.1, eps: 0.0, initial_accumulator: 0.0 };
        let layout = RowLayout::new(4, Dtype::F32, &optimizer, true);
        let mut row = vec![1.5; layout.stride / 4];
        for stamp in [0xfedc_ba98_7f80_0001, u64::MAX - 1, 6] {
            set_stamp(&layout, &mut row, stamp);
            assert_eq!(stamp_of(&layout, &row), stamp);
        }
        assert_eq!(row[..5], [1.5; 5]);
        let mut press = |mark: Mark| {
            // SAFETY: a row of this layout that is ours.
            unsafe { mark.press(&layout, &[row.as_mut_ptr()]) };
            stamp_of(&layout, &row)
        };
        assert_eq!(press(Mark::Count), 7);
        assert_eq!(press(Mark::At(9)), 9);
        assert_eq!(press(Mark::At(3)), 9, "a step that comes late makes no row older");
    }

    #[test]
    fn scores_rank_as_numbers_do() {
        let scores = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 0.5, 3.0, f32::INFINITY];
        assert!(scores.is_sorted_by_key(|&score| rank_of_score(score)));
        assert!(rank_of_score(-2.0) < rank_of_score(-1.0) && rank_of_score(1.0) < rank_of_score(2.0));
    }
}
