//! How many batches run at once on a CPU, from the part of its CPU time that batches use.

use std::time::{Duration, Instant};

use crate::cpu_time::cpu_time;

/// Time between two decisions.
const INTERVAL: Duration = Duration::from_secs(1);
/// After a longer time without the end of a batch, nothing is decided from what came before: while no batch runs, other work of
/// the process says nothing about the cores that batches need.
const PAUSE: Duration = Duration::from_millis(200);
/// Least CPU time of the process between two decisions: its clock counts hundredths of a second.
const CPU_MIN: Duration = Duration::from_millis(200);

/// Decides how many batches run at once: the cores, times the part of the CPU time that batches use.
///
/// More batches at once take cores from the sockets and lookups that feed them, and each batch joins fewer requests.
#[derive(Debug)]
pub struct CoreShare {
    cores: usize,
    /// When the last batch ended.
    ended: Instant,
    /// When the interval began.
    begun: Instant,
    /// CPU time when it began, of the whole process and of batches.
    process: Duration,
    batches: Duration,
}

impl CoreShare {
    /// Batches begin now, on this number of cores.
    pub fn new(cores: usize) -> Self {
        let now = Instant::now();
        Self { cores, ended: now, begun: now, process: cpu_time(), batches: Duration::ZERO }
    }

    /// A batch ended `now`, and all of them have used `batches` of CPU time. Returns a new number of batches at once when it is
    /// time for one.
    pub fn decide(&mut self, now: Instant, batches: Duration) -> Option<usize> {
        self.decide_from(now, batches, cpu_time)
    }

    fn decide_from(
        &mut self,
        now: Instant,
        batches: Duration,
        process: impl Fn() -> Duration,
    ) -> Option<usize> {
        let is_pause = now.saturating_duration_since(self.ended) > PAUSE;
        self.ended = now;
        if is_pause {
            (self.begun, self.process, self.batches) = (now, process(), batches);
        }
        if now.saturating_duration_since(self.begun) < INTERVAL {
            return None;
        }
        let process = process();
        let used = process.saturating_sub(self.process);
        if used < CPU_MIN {
            return None;
        }
        let part = batches.saturating_sub(self.batches).as_secs_f64() / used.as_secs_f64();
        (self.begun, self.process, self.batches) = (now, process, batches);
        Some(((self.cores as f64 * part).round() as usize).clamp(1, self.cores))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Batches that end every 100 ms for a second. They and the process have used this CPU time since the last call.
    struct Load {
        share: CoreShare,
        now: Instant,
        batches: Duration,
        process: Duration,
    }

    impl Load {
        fn new(cores: usize) -> Self {
            let (now, zero) = (Instant::now(), Duration::ZERO);
            let share = CoreShare { cores, ended: now, begun: now, process: zero, batches: zero };
            Self { share, now, batches: zero, process: zero }
        }

        fn second(&mut self, by_batches: u64, by_process: u64) -> Option<usize> {
            self.batches += millis(by_batches);
            self.process += millis(by_process);
            let mut decided = None;
            for _ in 0..10 {
                self.now += millis(100);
                let of_batch = self.share.decide_from(self.now, self.batches, || self.process);
                decided = decided.or(of_batch);
            }
            decided
        }
    }

    #[test]
    fn batches_get_their_part_of_the_cores() {
        let mut load = Load::new(8);
        assert_eq!(load.second(900, 1000), Some(7));
        assert_eq!(load.second(500, 1000), Some(4));
        assert_eq!(load.second(10, 1000), Some(1));
        assert_eq!(load.second(1200, 1000), Some(8));
        assert_eq!(load.second(30, 100), None, "too little CPU time");
        assert_eq!(load.second(60, 140), Some(3), "it counts with what follows");
    }

    #[test]
    fn what_the_process_does_without_batches_does_not_count() {
        let mut load = Load::new(8);
        // A model is loaded, and its first batch ends.
        (load.now, load.process) = (load.now + millis(30_000), millis(30_000));
        assert_eq!(load.share.decide_from(load.now, load.batches, || load.process), None);
        assert_eq!(load.second(900, 1000), Some(7));
        // Only metrics are read for an hour.
        (load.now, load.process) = (load.now + millis(3_600_000), load.process + millis(9000));
        assert_eq!(load.share.decide_from(load.now, load.batches, || load.process), None);
        assert_eq!(load.second(900, 1000), Some(7));
    }
}
