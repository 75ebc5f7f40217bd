//! Seeded random numbers.

use rowmill_splitmix::SplitMix64;

/// xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021), seeded by
/// `SplitMix64`. Not for cryptography.
#[derive(Clone, Debug)]
pub struct Rng64 {
    state: [u64; 4],
}

impl Rng64 {
    /// A generator; equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        Self { state: std::array::from_fn(|_| seeds.next_u64()) }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A uniform number in `[0, bound)` (Lemire, "Fast random integer generation in an interval", 2019).
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "bound must be at least 1");
        let mut product = u128::from(self.next_u64()) * u128::from(bound);
        if (product as u64) < bound {
            // Without rejecting the lowest 2^64 mod `bound` values, some numbers would be more likely.
            let favoured = bound.wrapping_neg() % bound;
            while (product as u64) < favoured {
                product = u128::from(self.next_u64()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// A multiple of 2^-53 in [0, 1), uniform.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with probability 1 / `bound`.
    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_published_generator() {
        // First output for state 1, 2, 3, 4: rotl(1 + 4, 23) + 1.
        let mut rng = Rng64 { state: [1, 2, 3, 4] };
        assert_eq!(rng.next_u64(), 41_943_041);
        assert_eq!(rng.next_u64(), 58_720_359);
    }

    #[test]
    fn equal_seeds_give_equal_numbers_and_others_do_not() {
        let numbers = |seed| {
            let mut rng = Rng64::new(seed);
            [(); 8].map(|()| rng.next_u64())
        };
        assert_eq!(numbers(5), numbers(5));
        assert_ne!(numbers(5), numbers(6));
    }

    #[test]
    fn numbers_below_a_bound_are_equally_likely() {
        let mut rng = Rng64::new(1);
        let mut counts = [0_i64; 7];
        for _ in 0..700_000 {
            counts[rng.below(7) as usize] += 1;
        }
        // Six standard deviations of a count of 100,000.
        assert!(counts.iter().all(|count| (count - 100_000).abs() < 1_800), "{counts:?}");
        // Scaling words to two thirds without rejection would make even numbers twice as likely.
        let even = (0..100_000).filter(|_| rng.below(u64::MAX / 3 * 2).is_multiple_of(2)).count();
        assert!((49_000..51_000).contains(&even), "{even}");
    }

    #[test]
    fn unit_floats_cover_the_interval() {
        let mut rng = Rng64::new(2);
        let units: Vec<f64> = (0..100_000).map(|_| rng.unit()).collect();
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        let mean = units.iter().sum::<f64>() / units.len() as f64;
        assert!((mean - 0.5).abs() < 0.006, "{mean}");
        assert_eq!((0..100_000).filter(|_| rng.one_in(1)).count(), 100_000);
    }
}
