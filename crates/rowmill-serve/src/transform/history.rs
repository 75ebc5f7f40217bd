//! The lists of ids of a history: where each begins, and the last ids of it.

use std::ops::Range;

use super::Column;
use crate::Failure;

/// The lists of a history, by row.
#[derive(Debug)]
pub(super) struct Lists {
    offsets: Vec<i64>,
}

impl Lists {
    /// Read the offsets `name` of a history with `ids` ids.
    ///
    /// # Errors
    /// When they do not run from 0 to `ids` without decreasing; names the history, the row and the values.
    pub(super) fn read(name: &str, column: &Column, ids: usize) -> Result<Self, Failure> {
        let wrong = |text: String| Failure::invalid(format!("column {name:?}{text}"));
        let offsets = column.numbers(name)?.to_i64();
        let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
            return Err(wrong(" is empty: it has one number per row, and the number of ids".into()));
        };
        if (first, last) != (0, ids as i64) {
            return Err(wrong(format!(
                " runs from {first} to {last}, must run from 0 to {ids}, the number of values"
            )));
        }
        if let Some(row) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            let (begin, end) = (offsets[row], offsets[row + 1]);
            return Err(wrong(format!(", row {row}: {end} follows {begin}, offsets must not decrease")));
        }
        Ok(Self { offsets })
    }

    /// Number of lists.
    pub(super) fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of ids of a row.
    pub(super) fn length(&self, row: usize) -> usize {
        (self.offsets[row + 1] - self.offsets[row]) as usize
    }

    /// Where the last ids of a row are, `places` at most.
    pub(super) fn last(&self, row: usize, places: usize) -> Range<usize> {
        let end = self.offsets[row + 1] as usize;
        end - self.length(row).min(places)..end
    }

    /// The row that has the id at `position`.
    pub(super) fn row_of(&self, position: usize) -> usize {
        self.offsets[1..].partition_point(|&end| end <= position as i64)
    }
}
