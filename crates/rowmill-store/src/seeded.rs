//! Deliberate bugs, in builds with the feature `seeded-bugs`: a test demands that the checker of histories
//! finds each of them. Without the feature, [`has`] is false at compile time and the compiler removes them.

/// A bug that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "seeded-bugs"),
    expect(dead_code, unreachable_pub, reason = "never constructed without the feature")
)]
pub enum SeededBug {
    /// No bug.
    None,
    /// A row read from the device is updated but not marked as changed. Once it leaves memory, the update is
    /// lost.
    LostUpdate,
    /// Row addresses are used after rows have left memory.
    StaleAddress,
    /// A clock is taken even beyond the staleness bound.
    NoBound,
    /// After a row was deleted and its id recreated, a step that held the old row releases a clock of the new
    /// one.
    ForeignClock,
}

/// Whether the bug is switched on.
#[cfg(not(feature = "seeded-bugs"))]
#[inline(always)]
pub(crate) const fn has(_bug: SeededBug) -> bool {
    false
}

#[cfg(feature = "seeded-bugs")]
pub(crate) use switch::has;
#[cfg(feature = "seeded-bugs")]
pub use switch::seed_bug;

#[cfg(feature = "seeded-bugs")]
mod switch {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    use super::SeededBug;

    const _: () = assert!(cfg!(debug_assertions), "seeded-bugs is for tests: a release build has no bugs");

    static SEEDED: AtomicU8 = AtomicU8::new(SeededBug::None as u8);

    /// Switch one bug on for all stores of this process, and the previous one off.
    pub fn seed_bug(bug: SeededBug) {
        SEEDED.store(bug as u8, Relaxed);
    }

    pub(crate) fn has(bug: SeededBug) -> bool {
        SEEDED.load(Relaxed) == bug as u8
    }
}
