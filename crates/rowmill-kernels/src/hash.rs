//! A hash of numbers: the output function of `SplitMix64` (Steele, Lea and Flood 2014, "Fast splittable
//! pseudorandom number generators"), Stafford's "Mix13" variant of the `MurmurHash3` finalizer. It flips each
//! output bit with probability near one half for every flipped input bit and passes `BigCrush` on plain counters.

/// 2^64 divided by the golden ratio: the odd step between counters.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mix `value` into `state`; a bijection of `value`.
#[inline(always)]
pub(crate) fn absorb(state: u64, value: u64) -> u64 {
    mix((state ^ value).wrapping_add(STEP))
}

/// Stafford's Mix13, a bijection.
#[inline(always)]
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
