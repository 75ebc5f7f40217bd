//! The six flag bits of an entry: two of access frequency, four of clock.

/// Bits of one entry.
pub(super) const FLAG_BITS: u32 = 6;
/// Largest access frequency.
pub(crate) const FREQUENCY_MAX: u8 = 3;
/// At this value the caller keeps the exact count of the clock. Values of 0..=14 are exact.
pub const CLOCK_OVERFLOW: u8 = 15;

const FREQUENCY_MASK: u32 = 0b00_0011;
const CLOCK_MASK: u32 = 0b11_1100;
const CLOCK_SHIFT: u32 = 2;

/// The access frequency within an entry's bits, which start at bit 0 of `bits`.
#[inline]
pub(super) fn frequency(bits: u32) -> u8 {
    (bits & FREQUENCY_MASK) as u8
}

/// The clock within an entry's bits.
#[inline]
pub(super) fn clock(bits: u32) -> u8 {
    ((bits & CLOCK_MASK) >> CLOCK_SHIFT) as u8
}

/// What a word grows by when the clock at `shift` is taken once.
#[inline]
pub(super) fn one_taken(shift: u32) -> u32 {
    1 << (CLOCK_SHIFT + shift)
}

/// Whether a clock of this value may be taken once more at this bound, and can represent the new value.
#[inline]
pub(super) fn may_take(clock: u8, bound: u8) -> bool {
    clock < CLOCK_OVERFLOW - 1 && clock <= bound
}

/// Whether a clock of this value is decremented when it is given back.
#[inline]
pub(super) fn may_give(clock: u8) -> bool {
    clock != 0 && clock != CLOCK_OVERFLOW
}

/// `word` with the frequency at `shift` replaced.
#[inline]
pub(super) fn with_frequency(word: u32, shift: u32, frequency: u8) -> u32 {
    debug_assert!(frequency <= FREQUENCY_MAX, "frequency {frequency} needs more than two bits");
    word & !(FREQUENCY_MASK << shift) | u32::from(frequency & FREQUENCY_MAX) << shift
}

/// `word` with the clock at `shift` replaced.
#[inline]
pub(super) fn with_clock(word: u32, shift: u32, clock: u8) -> u32 {
    debug_assert!(clock <= CLOCK_OVERFLOW, "clock {clock} needs more than four bits");
    word & !(CLOCK_MASK << shift) | u32::from(clock & CLOCK_OVERFLOW) << (CLOCK_SHIFT + shift)
}
