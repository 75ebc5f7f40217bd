//! The latest event time of training. The machine's clock is never used, so a repeated run sees the same
//! times.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum event time, in seconds.
pub(crate) const EVENT_TIME_MAX: u64 = 1 << 62;

/// The latest event time that a step passed, in seconds since an origin that the caller chooses.
#[derive(Debug, Default)]
pub(crate) struct EventClock(
    /// The time plus one; 0 until a step has passed one.
    AtomicU64,
);

impl EventClock {
    /// The time, or `None` if no step has passed one.
    pub(crate) fn now(&self) -> Option<u64> {
        self.0.load(Relaxed).checked_sub(1)
    }

    /// A step passed `time`. The clock never goes back.
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
