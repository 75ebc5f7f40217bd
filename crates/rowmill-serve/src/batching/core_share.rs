//! How many batches run at once on a CPU, from the part of its CPU time that batches use.

use std::time::{Duration, Instant};

use crate::cpu_time::cpu_time;

/// Time between two decisions.
const INTERVAL: Duration = Duration::from_secs(1);
/// Least CPU time of the process between two decisions: its clock counts hundredths of a second.
const CPU_MIN: Duration = Duration::from_millis(200);

/// Decides how many batches run at once: the cores, times the part of the CPU time that batches use.
///
/// More batches at once take cores from the sockets and lookups that feed them, and each batch joins fewer requests.
#[derive(Debug)]
pub struct CoreShare {
    cores: usize,
    decided: Instant,
    /// CPU time at the last decision, of the whole process and of batches.
    process: Duration,
    batches: Duration,
}

impl CoreShare {
    /// Batches begin now, on this number of cores.
    pub fn new(cores: usize) -> Self {
        Self { cores, decided: Instant::now(), process: cpu_time(), batches: Duration::ZERO }
    }

    /// Batches have used `batches` of CPU time up to `now`. Returns a new number of batches at once when it is time for one.
    pub fn decide(&mut self, now: Instant, batches: Duration) -> Option<usize> {
        if now.saturating_duration_since(self.decided) < INTERVAL {
            return None;
        }
        self.decide_from(now, batches, cpu_time())
    }

    fn decide_from(&mut self, now: Instant, batches: Duration, process: Duration) -> Option<usize> {
        let used = process.saturating_sub(self.process);
        if used < CPU_MIN {
            return None;
        }
        let part = batches.saturating_sub(self.batches).as_secs_f64() / used.as_secs_f64();
        (self.decided, self.process, self.batches) = (now, process, batches);
        Some(((self.cores as f64 * part).round() as usize).clamp(1, self.cores))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn batches_get_their_part_of_the_cores() {
        let now = Instant::now();
        let (mut batches, mut process) = (Duration::ZERO, Duration::ZERO);
        let mut share = CoreShare { cores: 8, decided: now, process, batches };
        for (by_batches, by_process, expected) in [
            (900, 1000, Some(7)),
            (500, 1000, Some(4)),
            (10, 1000, Some(1)),
            (1200, 1000, Some(8)),
            (30, 100, None),
        ] {
            (batches, process) = (batches + millis(by_batches), process + millis(by_process));
            assert_eq!(share.decide_from(now, batches, process), expected);
        }
        // What was too little counts with what follows.
        assert_eq!(share.decide_from(now, batches + millis(60), process + millis(140)), Some(3));
    }

    #[test]
    fn nothing_is_decided_before_its_time() {
        let mut share = CoreShare::new(4);
        assert_eq!(share.decide(share.decided + INTERVAL / 2, Duration::from_mins(1)), None);
    }
}
