//! Arrival times of an open loop, from the start of the run.

use std::path::Path;
use std::time::Duration;

use rowmill_splitmix::SplitMix64;

use crate::Failure;

/// Arrival times in order, until the end of the run.
#[derive(Clone, Debug)]
pub(super) enum Arrivals {
    /// Gaps are independent and exponential: many senders that do not know of each other.
    Poisson { random: SplitMix64, rate: f64, at_s: f64, end_s: f64 },
    /// Times that a file gives.
    Trace(std::vec::IntoIter<Duration>),
}

impl Arrivals {
    /// `rate` requests per second on average. Equal seeds give equal times.
    pub(super) fn poisson(rate: f64, end: Duration, seed: u64) -> Self {
        Self::Poisson { random: SplitMix64::new(seed), rate, at_s: 0.0, end_s: end.as_secs_f64() }
    }

    /// Of the times of a trace those before `end`.
    pub(super) fn trace(mut times: Vec<Duration>, end: Duration) -> Self {
        times.truncate(times.partition_point(|&at| at < end));
        Self::Trace(times.into_iter())
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        match self {
            Self::Trace(times) => times.next(),
            Self::Poisson { random, rate, at_s, end_s } => {
                // In (0, 1], so that the logarithm is finite.
                let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                *at_s -= uniform.ln() / *rate;
                (*at_s < *end_s).then(|| Duration::from_secs_f64(*at_s))
            }
        }
    }
}

/// Read a trace: one time in seconds per line, in order. Times are divided by `speed`.
///
/// # Errors
/// When the file cannot be read, or a line is wrong; names the line.
pub(super) fn read_trace(path: &Path, speed: f64) -> Result<Vec<Duration>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::invalid(format!("cannot read the trace {}: {error}", path.display())))?;
    let mut times = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: &str| {
            Failure::invalid(format!(
                "line {} of the trace {} is {line:?}: {why}",
                number + 1,
                path.display()
            ))
        };
        let seconds: f64 = line.trim().parse().map_err(|_| wrong("write one time in seconds"))?;
        let at = Duration::try_from_secs_f64(seconds / speed)
            .map_err(|_| wrong("a time must be 0 or more, in seconds from the start"))?;
        if times.last().is_some_and(|&last| at < last) {
            return Err(wrong("times must not decrease"));
        }
        times.push(at);
    }
    if times.is_empty() {
        return Err(Failure::invalid(format!("the trace {} has no times", path.display())));
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_arrivals_have_their_rate_and_independent_gaps() {
        let times: Vec<f64> =
            Arrivals::poisson(200.0, Duration::from_secs(500), 7).map(|at| at.as_secs_f64()).collect();
        let count = times.len() as f64;
        // The count has mean 100,000 and deviation 316.
        assert!((count - 100_000.0).abs() < 1_600.0, "{count}");
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|&gap| gap >= 0.0));
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 200.0 - 1.0).abs() < 0.02, "{mean}");
        assert!((variance * 200.0 * 200.0 - 1.0).abs() < 0.05, "an exponential gap deviates by its mean");
        // Counts of disjoint seconds have a variance equal to their mean.
        let mut counts = vec![0.0; 500];
        for at in &times {
            counts[*at as usize] += 1.0;
        }
        let mean = counts.iter().sum::<f64>() / 500.0;
        let spread = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 500.0;
        assert!((spread / mean - 1.0).abs() < 0.35, "{spread} for {mean}");
    }

    #[test]
    fn a_seed_repeats_its_arrivals() {
        let times = |seed| Arrivals::poisson(50.0, Duration::from_secs(2), seed).collect::<Vec<_>>();
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
        assert!(times(1).iter().all(|&at| at < Duration::from_secs(2)));
    }

    #[test]
    fn a_trace_is_scaled_and_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        std::fs::write(&path, "0\n0.5\n\n 0.5 \n2\n3e0\n").unwrap();
        let times = read_trace(&path, 2.0).unwrap();
        let ms = |ms: &[u64]| ms.iter().map(|&ms| Duration::from_millis(ms)).collect::<Vec<_>>();
        assert_eq!(times, ms(&[0, 250, 250, 1000, 1500]));
        assert_eq!(
            Arrivals::trace(times, Duration::from_secs(1)).collect::<Vec<_>>(),
            ms(&[0, 250, 250]),
            "times before the end"
        );
    }

    #[test]
    fn wrong_traces_name_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        for (text, why) in [
            ("0\nsoon\n", "line 2"),
            ("0\n-1\n", "line 2"),
            ("1\n0.5\n", "must not decrease"),
            ("nan\n", "line 1"),
            ("1e300\n", "line 1"),
            ("\n", "has no times"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read_trace(&path, 1.0).unwrap_err();
            assert!(error.text.contains(why), "{error} lacks {why:?}");
        }
        assert!(read_trace(&folder.path().join("absent"), 1.0).unwrap_err().text.contains("absent"));
    }
}
