//! The part of the CPU time of this process that batches use.

use std::time::{Duration, Instant};

use crate::cpu_time::cpu_time;

/// Least time between two measurements.
const INTERVAL: Duration = Duration::from_secs(1);
/// After a longer time without the end of a batch, nothing is measured from what came before: while no batch runs, other work of
/// the process says nothing about the cores that batches need.
const PAUSE: Duration = Duration::from_millis(200);
/// Least CPU time of the process between two measurements: its clock counts hundredths of a second.
const CPU_MIN: Duration = Duration::from_millis(200);

/// Measures the part of the CPU time of this process that batches use, every second under load.
#[derive(Debug)]
pub struct BatchPart {
    /// When the last batch ended.
    ended: Instant,
    /// When the interval began.
    begun: Instant,
    /// CPU time when it began, of the whole process.
    process: Duration,
    /// CPU time of batches since.
    batches: Duration,
}

impl Default for BatchPart {
    /// Batches begin now.
    fn default() -> Self {
        let now = Instant::now();
        Self { ended: now, begun: now, process: cpu_time(), batches: Duration::ZERO }
    }
}

impl BatchPart {
    /// A batch ended `now` that used `taken` of CPU time. Returns the part, 0 to 1, at the end of an interval.
    pub fn add(&mut self, now: Instant, taken: Duration) -> Option<f64> {
        self.add_from(now, taken, cpu_time)
    }

    fn add_from(&mut self, now: Instant, taken: Duration, process: impl Fn() -> Duration) -> Option<f64> {
        self.batches += taken;
        let is_pause = now.saturating_duration_since(self.ended) > PAUSE;
        self.ended = now;
        if is_pause {
            (self.begun, self.process, self.batches) = (now, process(), Duration::ZERO);
        }
        if now.saturating_duration_since(self.begun) < INTERVAL {
            return None;
        }
        let process = process();
        let used = process.saturating_sub(self.process);
        if used < CPU_MIN {
            return None;
        }
        let part = self.batches.as_secs_f64() / used.as_secs_f64();
        (self.begun, self.process, self.batches) = (now, process, Duration::ZERO);
        Some(part.min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Batches that end every 100 ms. They and the process have used this CPU time in the second.
    struct Load {
        part: BatchPart,
        now: Instant,
        process: Duration,
    }

    impl Load {
        fn new() -> Self {
            let part = BatchPart { process: Duration::ZERO, ..BatchPart::default() };
            Self { now: part.begun, part, process: Duration::ZERO }
        }

        /// The part in percent.
        fn second(&mut self, by_batches: u64, by_process: u64) -> Option<f64> {
            self.process += millis(by_process);
            let mut measured = None;
            for batch in 0..10 {
                self.now += millis(100);
                let taken = if batch == 0 { millis(by_batches) } else { Duration::ZERO };
                let of_batch = self.part.add_from(self.now, taken, || self.process);
                measured = measured.or(of_batch);
            }
            measured.map(|part| (part * 100.0).round())
        }
    }

    #[test]
    fn the_part_is_that_of_the_interval() {
        let mut load = Load::new();
        assert_eq!(load.second(900, 1000), Some(90.0));
        assert_eq!(load.second(10, 1000), Some(1.0));
        assert_eq!(load.second(1200, 1000), Some(100.0));
        assert_eq!(load.second(30, 100), None, "too little CPU time");
        assert_eq!(load.second(60, 150), Some(36.0), "it counts with what follows");
    }

    #[test]
    fn what_the_process_does_without_batches_does_not_count() {
        let mut load = Load::new();
        // A model is loaded, and its first batch ends.
        (load.now, load.process) = (load.now + millis(30_000), millis(30_000));
        assert_eq!(load.part.add_from(load.now, millis(5), || load.process), None);
        assert_eq!(load.second(900, 1000), Some(90.0));
        // Only metrics are read for an hour.
        (load.now, load.process) = (load.now + millis(3_600_000), load.process + millis(9000));
        assert_eq!(load.part.add_from(load.now, millis(5), || load.process), None);
        assert_eq!(load.second(900, 1000), Some(90.0));
    }
}
