//! The rate limit on lookups of a subsystem.

use std::time::Instant;

/// Lookups per second that a subsystem allows: a second's worth may come at once.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: u64,
    left: f64,
    since: Instant,
}

impl Rate {
    pub(crate) fn new(now: Instant, per_second: u64) -> Rate {
        Rate { per_second, left: per_second as f64, since: now }
    }

    /// Whether `lookups` more are allowed now. One request may exceed what is left, so that a large one is not refused
    /// for ever; those after it wait longer.
    pub(crate) fn allows(&mut self, now: Instant, lookups: u64) -> bool {
        let per_second = self.per_second as f64;
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.left = (self.left + passed * per_second).min(per_second);
        self.since = now;
        let is_allowed = self.left > 0.0;
        if is_allowed {
            self.left -= lookups as f64;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_refills_what_was_used() {
        let now = Instant::now();
        let mut rate = Rate::new(now, 100);
        assert!(rate.allows(now, 60) && rate.allows(now, 60));
        assert!(!rate.allows(now, 1), "20 too many");
        assert!(!rate.allows(now + Duration::from_millis(100), 1));
        assert!(rate.allows(now + Duration::from_millis(300), 1000));
        assert!(!rate.allows(now + Duration::from_secs(9), 1));
        assert!(rate.allows(now + Duration::from_secs(11), 1));
    }
}
