//! `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): a
//! pseudorandom number generator, and its output function as a hash.
//!
//! The output function is Stafford's "Mix13" variant of the `MurmurHash3` finalizer. It flips each output bit with
//! probability near one half for every flipped input bit and passes `BigCrush` on plain counters.
#![forbid(unsafe_code)]
// Functions that are not inlined into a caller with target features are compiled without those features.
#![allow(clippy::inline_always)]

/// 2^64 divided by the golden ratio, rounded to odd: the step between counters.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mix `value` into `state`. For a given `state`, this is a bijection of `value`.
#[inline(always)]
pub fn absorb(state: u64, value: u64) -> u64 {
    mix((state ^ value).wrapping_add(STEP))
}

/// Stafford's Mix13, a bijection. It spreads consecutive numbers, numbers that differ only in high bits, and
/// hashes.
#[inline(always)]
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The generator. Equal seeds give equal sequences.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number in `[0, bound)`; `bound` must not be 0. Results are equally likely up to a relative error of
    /// `bound` / 2^64, so keep `bound` small.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with probability 1 / `bound`.
    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs for seed 0, as printed by the reference implementation in C.
    #[test]
    fn follows_the_published_generator() {
        let mut generator = SplitMix64::new(0);
        assert_eq!(
            [(); 3].map(|()| generator.next_u64()),
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]
        );
    }

    #[test]
    fn numbers_below_a_bound_stay_below_it_and_reach_all() {
        let mut generator = SplitMix64::new(1);
        let mut seen = [false; 7];
        for _ in 0..1_000 {
            seen[generator.below(7) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert!(generator.one_in(1));
    }
}
