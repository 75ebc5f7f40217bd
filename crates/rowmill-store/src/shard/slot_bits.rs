//! One bit per slot, with a count of the set bits.

use rowmill_index::prefetch;

/// A growing bit set.
#[derive(Debug, Default)]
pub(crate) struct SlotBits {
    words: Vec<u64>,
    ones: usize,
}

impl SlotBits {
    #[inline]
    pub(crate) fn get(&self, bit: u32) -> bool {
        self.words[bit as usize / 64] >> (bit % 64) & 1 == 1
    }

    #[inline]
    pub(crate) fn set(&mut self, bit: u32) {
        let word = &mut self.words[bit as usize / 64];
        self.ones += usize::from(*word >> (bit % 64) & 1 == 0);
        *word |= 1 << (bit % 64);
    }

    #[inline]
    pub(crate) fn clear(&mut self, bit: u32) {
        let word = &mut self.words[bit as usize / 64];
        self.ones -= usize::from(*word >> (bit % 64) & 1 == 1);
        *word &= !(1 << (bit % 64));
    }

    /// Prefetch a bit.
    #[inline]
    pub(crate) fn prefetch(&self, bit: u32) {
        prefetch(self.words.as_ptr().wrapping_add(bit as usize / 64));
    }

    /// Number of set bits.
    pub(crate) fn count(&self) -> usize {
        self.ones
    }

    /// The lowest set bit in the word of bit `from` or in a later word.
    pub(crate) fn first_from(&self, from: u32) -> Option<u32> {
        let skipped = from as usize / 64;
        let word = skipped + self.words.get(skipped..)?.iter().position(|&word| word != 0)?;
        Some(word as u32 * 64 + self.words[word].trailing_zeros())
    }

    /// Grow to at least `len` bits.
    pub(crate) fn grow(&mut self, len: usize) {
        let words = len.div_ceil(64);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    /// Drop the bits from `len` on; they must be clear.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.words.truncate(len.div_ceil(64));
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_finds_what_is_set() {
        let mut bits = SlotBits::default();
        bits.grow(200);
        assert_eq!((bits.count(), bits.first_from(0)), (0, None));
        for bit in [199, 64, 64, 130] {
            bits.set(bit);
        }
        assert_eq!((bits.count(), bits.first_from(0)), (3, Some(64)));
        bits.clear(64);
        bits.clear(64);
        bits.clear(5);
        assert_eq!((bits.count(), bits.first_from(0), bits.get(199)), (2, Some(130), true));
    }
}
