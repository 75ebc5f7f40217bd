//! A histogram of durations that threads fill without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The upper bound of the first bucket.
const LEAST_NS: f64 = 16_000.0;
/// Buckets per doubling: bounds are 19 % apart, so that an interpolated percentile is within a tenth.
const PER_DOUBLING: usize = 4;
/// From 16 us to 67 s.
const DOUBLINGS: usize = 22;
/// Buckets with a bound; one more holds longer durations.
const BOUNDED: usize = DOUBLINGS * PER_DOUBLING + 1;

/// Durations by size. Reading while threads write may miss the latest.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDED + 1],
    ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| AtomicU64::new(0)), ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Count a duration.
    pub(crate) fn observe(&self, taken: Duration) {
        let ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)].fetch_add(1, Relaxed);
        self.ns.fetch_add(ns, Relaxed);
    }

    /// Durations counted.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Their sum in nanoseconds.
    pub(crate) fn ns(&self) -> u64 {
        self.ns.load(Relaxed)
    }

    /// Forget all durations.
    pub(crate) fn clear(&self) {
        self.counts.iter().chain([&self.ns]).for_each(|count| count.store(0, Relaxed));
    }

    /// The counts of all buckets.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Relaxed)).collect()
    }

    /// The upper bounds of the buckets in seconds; the last bucket has none.
    pub(crate) fn bounds_s() -> impl Iterator<Item = f64> {
        (0..BOUNDED).map(|bucket| LEAST_NS * 1e-9 * 2_f64.powf(bucket as f64 / PER_DOUBLING as f64))
    }

    /// Bounds in seconds, a doubling apart, and the counts between them, for Prometheus: few series, exact sums.
    pub(crate) fn doublings(&self) -> Vec<(f64, u64)> {
        let counts = self.counts();
        let mut found = vec![(LEAST_NS * 1e-9, counts[0])];
        for doubling in 0..DOUBLINGS {
            let first = 1 + doubling * PER_DOUBLING;
            // In whole microseconds, so that no bound has a rounding error in its text.
            let bound = (LEAST_NS * 1e-3) * 2_f64.powi(doubling as i32 + 1) / 1e6;
            found.push((bound, counts[first..first + PER_DOUBLING].iter().sum()));
        }
        found.push((f64::INFINITY, counts[BOUNDED]));
        found
    }
}

fn bucket(ns: u64) -> usize {
    let doublings = (ns as f64 / LEAST_NS).log2();
    // Negative numbers, and minus infinity for 0, become 0.
    ((doublings * PER_DOUBLING as f64).ceil() as usize).min(BOUNDED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_whose_bound_is_the_first_not_below_it() {
        let bounds: Vec<f64> = Histogram::bounds_s().collect();
        for ns in [0, 1, 15_999, 16_000, 16_001, 32_000, 32_001, 1_000_000, 67_108_864_000, u64::MAX] {
            let expected = bounds.iter().position(|bound| ns as f64 <= bound * 1e9 * (1.0 + 1e-12));
            assert_eq!(bucket(ns), expected.unwrap_or(BOUNDED), "{ns}");
        }
    }

    #[test]
    fn counts_by_doublings_are_those_of_all_buckets() {
        let histogram = Histogram::default();
        for micros in (0..200_000_u64).step_by(7) {
            histogram.observe(Duration::from_micros(micros * micros / 300));
        }
        let doublings = histogram.doublings();
        assert_eq!(doublings.len(), DOUBLINGS + 2);
        assert_eq!(doublings.iter().map(|(_, count)| count).sum::<u64>(), histogram.count());
        assert!(doublings.last().unwrap().1 > 0);
        assert_eq!(doublings[6].0, 0.001_024);
        let below = (0..200_000_u64).step_by(7).filter(|micros| micros * micros / 300 <= 1024).count() as u64;
        assert_eq!(doublings[..=6].iter().map(|(_, count)| count).sum::<u64>(), below);
        histogram.clear();
        assert_eq!((histogram.count(), histogram.ns()), (0, 0));
    }
}
