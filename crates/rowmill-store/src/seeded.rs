//! Bugs on purpose, in builds with the feature `seeded-bugs`: a test demands that the checker of histories
//! flags every one. Without the feature [`has`] is false at compile time, and nothing is left of them.

/// A bug that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "seeded-bugs"),
    expect(dead_code, unreachable_pub, reason = "only named, never switched on")
)]
pub enum SeededBug {
    /// None.
    None,
    /// A row that was read from the device is changed and not marked as changed: once it leaves memory, it
    /// comes back as it was.
    LostUpdate,
    /// Addresses of rows are used though rows have left memory since they were taken.
    StaleAddress,
    /// A clock is taken whatever the staleness bound says.
    NoBound,
    /// A step whose row was deleted gives back a clock of the row that was born with its id since.
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

    /// Switch a bug on, for every store of this process, and the one before it off.
    pub fn seed_bug(bug: SeededBug) {
        SEEDED.store(bug as u8, Relaxed);
    }

    pub(crate) fn has(bug: SeededBug) -> bool {
        SEEDED.load(Relaxed) == bug as u8
    }
}
