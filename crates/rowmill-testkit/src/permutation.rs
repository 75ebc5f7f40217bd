//! A shuffled order of many ids that needs no memory.

use rowmill_splitmix::mix;

/// A seeded bijection of the numbers in `[0, size)`, computed instead of stored.
///
/// Neighbours are mapped far apart. It spreads ids; it is not a uniformly random permutation.
#[derive(Clone, Debug)]
pub struct Permutation {
    size: u64,
    /// Mask of the smallest power of two that is at least `size`. The bijection permutes all words of that
    /// many bits and is repeated until the result is below `size` (Black and Rogaway, "Ciphers with arbitrary
    /// finite domains", 2002): at worst twice on average.
    mask: u64,
    shift: u32,
    multipliers: [u64; 3],
}

impl Permutation {
    /// A bijection of the numbers in `[0, size)`.
    ///
    /// # Panics
    /// When `size` is 0.
    pub fn new(size: u64, seed: u64) -> Self {
        assert!(size > 0, "size must be at least 1");
        let bits = (u64::BITS - (size - 1).leading_zeros()).max(1);
        Self {
            size,
            mask: u64::MAX >> (u64::BITS - bits),
            shift: bits.div_ceil(2),
            // Odd, so that the multiplication is invertible.
            multipliers: [1, 2, 3].map(|round| mix(seed.wrapping_add(round)) | 1),
        }
    }

    /// The number that `number`, which must be below the size, is mapped to.
    pub fn of(&self, number: u64) -> u64 {
        debug_assert!(number < self.size);
        let mut word = number;
        loop {
            for multiplier in self.multipliers {
                word = word.wrapping_add(1).wrapping_mul(multiplier) & self.mask;
                word ^= word >> self.shift;
            }
            if word < self.size {
                return word;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_occurs_once() {
        for size in [1, 2, 3, 5, 64, 1000, 1023, 1025, 70_001] {
            for seed in 0..4 {
                let permutation = Permutation::new(size, seed);
                let mut seen = vec![false; size as usize];
                for number in 0..size {
                    let to = permutation.of(number) as usize;
                    assert!(!std::mem::replace(&mut seen[to], true), "{to} is hit twice");
                }
            }
        }
    }

    #[test]
    fn adjacent_numbers_are_scattered() {
        let size = 1 << 20;
        let permutation = Permutation::new(size, 9);
        let near = (0..10_000).filter(|n| permutation.of(*n).abs_diff(permutation.of(n + 1)) < 64).count();
        assert!(near < 20, "{near} of 10,000 neighbours stay within 64");
    }

    #[test]
    fn the_whole_range_of_words_can_be_permuted() {
        let permutation = Permutation::new(u64::MAX, 1);
        assert_ne!(permutation.of(0), permutation.of(u64::MAX - 1));
    }
}
