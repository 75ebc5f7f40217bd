//! Messages: rows of many categories and ranks, contiguous in one buffer.
//!
//! The owner packs rows directly into the message, even if it mixes dims, and adds up the rows that all ranks
//! send back. No data is concatenated or copied twice.

/// Layout of a message: rank by rank, the rank's rows of every category.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// `counts[r * C + c]` is the number of rows of category `c` for or from rank `r`.
    pub counts: &'a [u32],
    /// Floats per row, by category.
    pub dims: &'a [u32],
}

impl Message<'_> {
    /// Number of rows in the message.
    pub fn rows(&self) -> usize {
        self.counts.iter().map(|&count| count as usize).sum()
    }

    /// Number of floats in the message; `None` if it overflows.
    pub fn floats(&self) -> Option<usize> {
        self.blocks().try_fold(0_usize, |sum, (_, count, dim)| sum.checked_add(count.checked_mul(dim)?))
    }

    /// Offset of each row in floats. [`Message::floats`] must not be `None`.
    pub fn starts(&self) -> Vec<usize> {
        let mut starts = Vec::with_capacity(self.rows());
        let mut start = 0;
        for (_, count, dim) in self.blocks() {
            starts.extend((0..count).map(|row| start + row * dim));
            start += count * dim;
        }
        starts
    }

    /// The blocks of rows of one rank and one category: category, number of rows, floats per row.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let categories = self.dims.len().max(1);
        assert!(
            self.counts.len().is_multiple_of(categories),
            "counts must have one entry per rank and category"
        );
        let blocks = self.counts.iter().enumerate();
        blocks.map(move |(number, &count)| {
            let category = number % categories;
            (category, count as usize, self.dims[category] as usize)
        })
    }

    /// Call `each` for every row of the message with two ranges of floats: that of the row, and that of its
    /// distinct row.
    fn walk(
        &self,
        unique_counts: &[u32],
        inverse: &[u32],
        mut each: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        assert_eq!(unique_counts.len(), self.dims.len(), "unique_counts must have one entry per category");
        assert_eq!(inverse.len(), self.rows(), "inverse must have one entry per row of the message");
        let unique = Message { counts: unique_counts, dims: self.dims };
        assert!(unique.floats().is_some(), "the number of floats of the distinct rows overflows: {unique:?}");
        // Per category: the number of its first distinct row, the number of its distinct rows, and its first
        // float.
        let mut firsts = Vec::with_capacity(self.dims.len());
        let (mut row, mut float) = (0, 0);
        for (&count, &dim) in unique_counts.iter().zip(self.dims) {
            firsts.push((row, count as usize, float));
            row += count as usize;
            float += count as usize * dim as usize;
        }
        let (mut inverse, mut place) = (inverse.iter(), 0);
        for (category, count, dim) in self.blocks() {
            for &unique in inverse.by_ref().take(count) {
                let (first, rows, float) = firsts[category];
                let row = (unique as usize).wrapping_sub(first);
                assert!(
                    row < rows,
                    "row {unique} is not in category {category}, whose {rows} rows begin with {first}"
                );
                let start = float + row * dim;
                each(place..place + dim, start..start + dim);
                place += dim;
            }
        }
    }
}

/// Fill `wire` with the rows of a message: row `i` is a copy of distinct row `inverse[i]`.
///
/// `rows` holds the distinct rows category by category, `unique_counts[c]` of category `c`. `inverse` numbers
/// them through all categories. [`owner_unique`](crate::owner_unique) computes both.
///
/// # Panics
/// If lengths do not agree, or `inverse` names a row of another category.
pub fn pack(message: Message<'_>, rows: &[f32], unique_counts: &[u32], inverse: &[u32], wire: &mut [f32]) {
    assert_eq!(Some(wire.len()), message.floats(), "wire must have the length of the message");
    message.walk(unique_counts, inverse, |place, row| wire[place].copy_from_slice(&rows[row]));
}

/// The backward of [`pack`]: add every row of a message to its distinct row, in the order of the message.
///
/// # Panics
/// As for [`pack`].
pub fn unpack_add(
    message: Message<'_>,
    wire: &[f32],
    unique_counts: &[u32],
    inverse: &[u32],
    rows: &mut [f32],
) {
    assert_eq!(Some(wire.len()), message.floats(), "wire must have the length of the message");
    message.walk(unique_counts, inverse, |place, row| {
        for (sum, &value) in rows[row].iter_mut().zip(&wire[place]) {
            *sum += value;
        }
    });
}
