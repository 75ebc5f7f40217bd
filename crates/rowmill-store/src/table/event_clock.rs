//! The event time that training has come to. No clock of a machine is ever asked: a run that is repeated
//! sees the same times.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Event times end here.
pub(crate) const EVENT_TIME_MAX: u64 = 1 << 62;

/// The latest event time that a step said, in seconds from a beginning of the caller's own.
#[derive(Debug, Default)]
pub(crate) struct EventClock(
    /// One more than the time; 0 until one is known.
    AtomicU64,
);

impl EventClock {
    /// The time, once one was said.
    pub(crate) fn now(&self) -> Option<u64> {
        self.0.load(Relaxed).checked_sub(1)
    }

    /// A step said `time`; the clock does not go back.
    pub(crate) fn advance(&self, time: u64) {
        self.0.fetch_max(time + 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_begins_with_the_first_time_said_and_does_not_go_back() {
        let clock = EventClock::default();
        assert_eq!(clock.now(), None);
        clock.advance(0);
        assert_eq!(clock.now(), Some(0));
        clock.advance(7);
        clock.advance(5);
        assert_eq!(clock.now(), Some(7));
    }
}
