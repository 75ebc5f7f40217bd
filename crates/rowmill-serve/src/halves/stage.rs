//! Predicted times of one kind of job on lookup threads, and of the work that follows it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ServiceTime;
use crate::metrics::HalfMetrics;

/// By how much the shortest rest is raised towards each longer one, so that a rest that was never so short again is forgotten.
const FORGETTING: f64 = 0.02;

/// A kind of job: the CPU half of a model, or its post-processing.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) metrics: Arc<HalfMetrics>,
    time: Mutex<ServiceTime>,
    /// The shortest recent time from the end of a job to the answer of its request, in seconds.
    rest: Mutex<f64>,
}

impl Stage {
    pub(super) fn new(metrics: &Arc<HalfMetrics>) -> Arc<Self> {
        Arc::new(Self { metrics: Arc::clone(metrics), time: Mutex::default(), rest: Mutex::default() })
    }

    /// How long a job of `rows` is predicted to take, and what jitter may add to it behind `ahead` others.
    pub(super) fn predict(&self, rows: u32, ahead: usize) -> (Duration, Duration) {
        let time = self.time.lock();
        (time.predict(rows), time.margin(ahead))
    }

    /// A job of `rows` took `time`.
    pub(super) fn observe(&self, rows: u32, time: Duration) {
        self.time.lock().observe(rows, time);
    }

    /// The time that a request needs at least between the end of its job and its answer. The shortest and not the mean: a
    /// request that would wait too long for the dense half is refused there, and that wait may end at any moment.
    pub(super) fn rest(&self) -> Duration {
        Duration::try_from_secs_f64(*self.rest.lock()).unwrap_or_default()
    }

    /// A request was answered `time` after the end of its job.
    pub(super) fn observe_rest(&self, time: Duration) {
        let (mut rest, seconds) = (self.rest.lock(), time.as_secs_f64());
        // The first one is 0, which is below all.
        *rest =
            if *rest == 0.0 || seconds < *rest { seconds } else { *rest + FORGETTING * (seconds - *rest) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_the_shortest_of_late() {
        let stage = Stage::new(&Arc::default());
        assert_eq!(stage.rest(), Duration::ZERO);
        for millis in [30, 20, 50, 90] {
            stage.observe_rest(Duration::from_millis(millis));
        }
        assert!((20..23).contains(&stage.rest().as_millis()), "{:?}", stage.rest());
        (0..300).for_each(|_| stage.observe_rest(Duration::from_millis(90)));
        assert!((89..91).contains(&stage.rest().as_millis()), "{:?}", stage.rest());
    }
}
