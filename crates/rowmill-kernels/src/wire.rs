//! Rows of many categories and ranks in one message, one after the other without anything between them.
//!
//! The owner of rows packs them straight into the message, however many dims it mixes, and adds up what comes back from
//! all ranks; nothing is concatenated or copied twice.

/// What a message holds: for every rank, one after the other, its rows of every category.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// `counts[r * C + c]` rows of category `c` for or from rank `r`.
    pub counts: &'a [u32],
    /// Floats of a row, by category.
    pub dims: &'a [u32],
}

impl Message<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.counts.iter().map(|&count| count as usize).sum()
    }

    /// Number of floats; `None` if it overflows.
    pub fn floats(&self) -> Option<usize> {
        self.blocks().try_fold(0_usize, |sum, (_, count, dim)| sum.checked_add(count.checked_mul(dim)?))
    }

    /// Where each row begins. [`Message::floats`] must not be `None`.
    pub fn starts(&self) -> Vec<usize> {
        let mut starts = Vec::with_capacity(self.rows());
        let mut start = 0;
        for (_, count, dim) in self.blocks() {
            starts.extend((0..count).map(|row| start + row * dim));
            start += count * dim;
        }
        starts
    }

    /// The rows of one rank and one category each: the category, how many rows, floats per row.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let categories = self.dims.len().max(1);
        assert!(self.counts.len().is_multiple_of(categories), "a count per rank and category");
        let blocks = self.counts.iter().enumerate();
        blocks.map(move |(number, &count)| {
            let category = number % categories;
            (category, count as usize, self.dims[category] as usize)
        })
    }

    /// Call `each` with every row of the message and the distinct row it stands for, both as places of their floats.
    fn walk(
        &self,
        unique_counts: &[u32],
        inverse: &[u32],
        mut each: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        assert_eq!(unique_counts.len(), self.dims.len(), "a number of distinct rows per category");
        assert_eq!(inverse.len(), self.rows(), "a distinct row for each one of the message");
        let unique = Message { counts: unique_counts, dims: self.dims };
        assert!(unique.floats().is_some(), "the number of floats of the distinct rows overflows: {unique:?}");
        // The first distinct row of every category, how many there are, and the first float.
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

/// Fill `wire` with the rows a message holds: its `i`th row is the distinct row `inverse[i]`.
///
/// `rows` holds the distinct rows of category after category, `unique_counts[c]` of them, and `inverse` counts through all
/// categories, as [`owner_unique`](crate::owner_unique) leaves both.
///
/// # Panics
/// If lengths do not agree, or a row stands for one of another category.
pub fn pack(message: Message<'_>, rows: &[f32], unique_counts: &[u32], inverse: &[u32], wire: &mut [f32]) {
    assert_eq!(Some(wire.len()), message.floats(), "room for every row of the message");
    message.walk(unique_counts, inverse, |place, row| wire[place].copy_from_slice(&rows[row]));
}

/// Add every row of a message to the distinct row it stands for, in the order of the message: the backward of [`pack`].
///
/// # Panics
/// As [`pack`].
pub fn unpack_add(
    message: Message<'_>,
    wire: &[f32],
    unique_counts: &[u32],
    inverse: &[u32],
    rows: &mut [f32],
) {
    assert_eq!(Some(wire.len()), message.floats(), "a value for every row of the message");
    message.walk(unique_counts, inverse, |place, row| {
        for (sum, &value) in rows[row].iter_mut().zip(&wire[place]) {
            *sum += value;
        }
    });
}
