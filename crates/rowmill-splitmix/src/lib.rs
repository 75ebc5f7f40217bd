//! `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): a generator of
//! random numbers, and its output function as a hash.
//!
//! The output function is Stafford's "Mix13" variant of the `MurmurHash3` finalizer. It flips each output bit with
//! probability near one half for every flipped input bit and passes `BigCrush` on plain counters.
#![forbid(unsafe_code)]
// What is not inlined into a function of an instruction set is compiled without it.
#![allow(clippy::inline_always)]

/// 2^64 divided by the golden ratio: the odd step between counters.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mix `value` into `state`; a bijection of `value`.
#[inline(always)]
pub fn absorb(state: u64, value: u64) -> u64 {
    mix((state ^ value).wrapping_add(STEP))
}

/// Stafford's Mix13, a bijection: consecutive numbers, numbers that differ only in high bits and hashes all spread.
#[inline(always)]
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The generator: equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0. Small bounds only: the numbers are equally likely up to one part in
    /// 2^64 / `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `bound` times.
    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs for the seed 0 as the reference implementation in C prints them.
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
