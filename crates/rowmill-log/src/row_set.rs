//! A set of row numbers that several threads change, one bit per row number.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the first chunk; each further chunk has twice as many.
const FIRST: u32 = 64;
/// Enough chunks for all row numbers, which have 31 bits.
const CHUNKS: usize = 20;

/// A set of row numbers. Its words come in chunks, chunk `k` holding `64 << k`, so that they never move.
#[derive(Debug, Default)]
pub struct RowSet {
    chunks: [OnceLock<Box<[AtomicU64]>>; CHUNKS],
}

impl RowSet {
    /// Whether `row` is in the set.
    pub fn has(&self, row: u32) -> bool {
        let (chunk, at) = split(row / 64);
        self.chunks[chunk].get().is_some_and(|words| words[at].load(Ordering::Acquire) & bit(row) != 0)
    }

    /// Add `row`. Returns whether it is new.
    pub fn insert(&self, row: u32) -> bool {
        self.word(row / 64).fetch_or(bit(row), Ordering::AcqRel) & bit(row) == 0
    }

    /// Remove `row`. Returns whether it was in the set.
    pub fn remove(&self, row: u32) -> bool {
        let (chunk, at) = split(row / 64);
        let words = self.chunks[chunk].get();
        words.is_some_and(|words| words[at].fetch_and(!bit(row), Ordering::AcqRel) & bit(row) != 0)
    }

    /// Add the rows of a word: bit `b` of word `at` is row `64 * at + b`.
    ///
    /// # Panics
    /// When `at` is above 2^25.
    pub fn insert_word(&self, at: u32, bits: u64) {
        self.word(at).fetch_or(bits, Ordering::AcqRel);
    }

    /// The words that are not zero, ascending, as for [`RowSet::insert_word`].
    pub fn words(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let chunks = (0u32..).zip(&self.chunks).filter_map(|(chunk, words)| Some((chunk, words.get()?)));
        let words = chunks.flat_map(|(chunk, words)| {
            let first = (FIRST << chunk) - FIRST;
            (first..).zip(words.iter().map(|word| word.load(Ordering::Acquire)))
        });
        words.filter(|(_, bits)| *bits != 0)
    }

    /// All rows, ascending.
    pub fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        self.words()
            .flat_map(|(at, bits)| (0..64).filter(move |b| bits >> b & 1 == 1).map(move |b| at * 64 + b))
    }

    /// A copy. Rows that other threads add or remove meanwhile may be in it or not.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self::default();
        for (to, from) in copy.chunks.iter().zip(&self.chunks) {
            if let Some(words) = from.get() {
                let words = words.iter().map(|word| AtomicU64::new(word.load(Ordering::Acquire)));
                to.get_or_init(|| words.collect());
            }
        }
        copy
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().filter_map(OnceLock::get).map(|words| size_of_val(&**words)).sum()
    }

    fn word(&self, at: u32) -> &AtomicU64 {
        let (chunk, at) = split(at);
        let words = || (0..FIRST << chunk).map(|_| AtomicU64::new(0)).collect();
        &self.chunks[chunk].get_or_init(words)[at]
    }
}

fn bit(row: u32) -> u64 {
    1 << (row % 64)
}

fn split(word: u32) -> (usize, usize) {
    let shifted = word + FIRST;
    let chunk = shifted.ilog2() - FIRST.ilog2();
    (chunk as usize, (shifted - (FIRST << chunk)) as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(changes in prop::collection::vec((any::<bool>(), 0u32..20_000), 0..300)) {
            let (set, mut model) = (RowSet::default(), BTreeSet::new());
            for (insert, row) in changes {
                let changed = if insert { set.insert(row) } else { set.remove(row) };
                prop_assert_eq!(changed, if insert { model.insert(row) } else { model.remove(&row) });
                prop_assert_eq!(set.has(row), insert);
            }
            prop_assert!(set.rows().eq(model.iter().copied()));
            let again = RowSet::default();
            set.copy().words().for_each(|(at, bits)| again.insert_word(at, bits));
            prop_assert!(again.rows().eq(model));
        }
    }

    #[test]
    fn the_last_row_number_has_a_bit() {
        let set = RowSet::default();
        assert!(set.insert((1 << 31) - 1) && set.insert(0));
        assert_eq!(set.rows().collect::<Vec<_>>(), [0, (1 << 31) - 1]);
    }
}
