//! A clock that moves only when a test moves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time since the clock was made. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    nanoseconds: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// The time, which never goes back.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Acquire))
    }

    /// Let `time` pass; what the time is then.
    ///
    /// # Panics
    /// When the clock passes 2^64 nanoseconds, 584 years.
    pub fn advance(&self, time: Duration) -> Duration {
        let step = u64::try_from(time.as_nanos()).expect("a step shorter than 584 years");
        let before = self.nanoseconds.fetch_add(step, Ordering::AcqRel);
        Duration::from_nanos(before.checked_add(step).expect("a clock younger than 584 years"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_when_told_and_for_every_clone() {
        let clock = VirtualClock::new();
        let other = clock.clone();
        assert_eq!(clock.now(), Duration::ZERO);
        assert_eq!(clock.advance(Duration::from_millis(3)), Duration::from_millis(3));
        other.advance(Duration::from_nanos(1));
        assert_eq!(clock.now(), Duration::from_nanos(3_000_001));
    }
}
