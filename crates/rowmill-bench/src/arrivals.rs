//! An open loop: calls start at random times, however long earlier calls take.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rowmill_testkit::Rng64;

/// Number of calling threads. Further calls wait, and the wait counts as latency.
const CALLERS: usize = 16;

/// Calls per second as a Poisson process, for a number of seconds.
pub(crate) struct Arrivals {
    pub(crate) per_s: f64,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
}

impl Arrivals {
    /// The time at which each call is due.
    fn instants(&self) -> Vec<Duration> {
        let mut rng = Rng64::new(self.seed);
        let mut now = 0.0;
        std::iter::from_fn(|| {
            now -= (1.0 - rng.unit()).ln() / self.per_s;
            (now < self.seconds).then(|| Duration::from_secs_f64(now))
        })
        .collect()
    }

    /// Make the calls, passing their numbers. Returns the time from due to end of each call that returned
    /// true.
    pub(crate) fn run(&self, work: impl Fn(usize) -> bool + Sync) -> Vec<Duration> {
        let instants = self.instants();
        let (next, waits) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(instants.len())));
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| {
                    loop {
                        let call = next.fetch_add(1, Relaxed);
                        let Some(&due) = instants.get(call) else { return };
                        std::thread::sleep(due.saturating_sub(begin.elapsed()));
                        if work(call) {
                            let wait = begin.elapsed().saturating_sub(due);
                            waits.lock().expect("no caller panics").push(wait);
                        }
                    }
                });
            }
        });
        waits.into_inner().expect("no caller panicked")
    }
}

/// The smallest of `sorted` that is not below a fraction `share` of them; zero if there are none.
pub(crate) fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let waits: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        let at = |share| percentile(&waits, share).as_millis();
        assert_eq!((at(0.5), at(0.99), at(1.0), at(0.0)), (100, 198, 200, 1));
        assert_eq!(percentile(&waits[..1], 0.99), waits[0]);
        assert_eq!(percentile(&[], 0.99), Duration::ZERO);
    }

    #[test]
    fn calls_arrive_at_random_at_the_given_rate() {
        let instants = Arrivals { per_s: 1000.0, seconds: 10.0, seed: 1 }.instants();
        assert!((9_500..10_500).contains(&instants.len()), "{}", instants.len());
        let gaps: Vec<f64> =
            instants.windows(2).map(|pair| pair[1].abs_diff(pair[0]).as_secs_f64() * 1000.0).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((0.9..1.1).contains(&mean) && (0.9..1.1).contains(&variance), "{mean} {variance}");
    }

    #[test]
    fn every_call_is_made_and_marked_calls_are_timed() {
        let made = AtomicUsize::new(0);
        let arrivals = Arrivals { per_s: 2000.0, seconds: 0.05, seed: 2 };
        let waits = arrivals.run(|call| {
            made.fetch_add(1, Relaxed);
            call.is_multiple_of(2)
        });
        assert_eq!(made.into_inner(), arrivals.instants().len());
        assert_eq!(waits.len(), arrivals.instants().len().div_ceil(2));
    }
}
