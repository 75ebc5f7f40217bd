//! A volume with throttled devices.

use std::fmt::{self, Debug, Formatter};
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_io::{Device, DeviceError, FileWriter, ReadResult, Span, Volume, VolumeLock};
use rowmill_sync::unranked::Mutex;

/// Spans per wait, so that a batch larger than a device's queue is not delivered only at its end.
const SPANS_AT_ONCE: usize = 128;

/// Limits on the speed of all devices of a volume together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleLimits {
    /// Most spans read per second.
    pub reads_per_s: Option<u64>,
    /// Most bytes read and written per second.
    pub bytes_per_s: Option<u64>,
    /// Least time from request to result of every read.
    pub read_latency: Duration,
}

/// Any volume with throttled devices. Small files are not throttled.
pub struct ThrottledVolume {
    inner: Arc<dyn Volume>,
    throttle: Arc<Throttle>,
}

impl ThrottledVolume {
    /// Throttle `inner` to `limits`.
    pub fn new(inner: Arc<dyn Volume>, limits: ThrottleLimits) -> Self {
        let throttle =
            Throttle { started: Instant::now(), limits, pace: Mutex::new(Pace { free_at: Duration::ZERO }) };
        Self { inner, throttle: Arc::new(throttle) }
    }
}

impl Debug for ThrottledVolume {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ThrottledVolume({:?}, {:?})", self.throttle.limits, self.inner)
    }
}

impl Volume for ThrottledVolume {
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError> {
        let inner = self.inner.device(name, writable)?;
        Ok(Arc::new(ThrottledDevice { inner, throttle: Arc::clone(&self.throttle) }))
    }

    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError> {
        self.inner.create(name)
    }

    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError> {
        self.inner.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.inner.remove(name)
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        self.inner.list()
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }

    fn lock(&self) -> Result<Box<dyn VolumeLock>, DeviceError> {
        self.inner.lock()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    fn describe(&self) -> String {
        format!("{}, throttled to {:?}", self.inner.describe(), self.throttle.limits)
    }
}

#[derive(Debug)]
struct ThrottledDevice {
    inner: Arc<dyn Device>,
    throttle: Arc<Throttle>,
}

impl Device for ThrottledDevice {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
        for (turn, some) in spans.chunks(SPANS_AT_ONCE).enumerate() {
            let bytes: usize = some.iter().map(|span| span.bytes).sum();
            self.throttle.wait(some.len() as u64, bytes as u64, self.throttle.limits.read_latency);
            self.inner.read(some, &mut |position, result| deliver(turn * SPANS_AT_ONCE + position, result));
        }
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        self.throttle.wait(0, blocks.len() as u64, Duration::ZERO);
        self.inner.write(offset, blocks)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }

    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        self.inner.discard(span)
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

#[derive(Debug)]
struct Throttle {
    started: Instant,
    limits: ThrottleLimits,
    pace: Mutex<Pace>,
}

impl Throttle {
    fn wait(&self, reads: u64, bytes: u64, latency: Duration) {
        let now = self.started.elapsed();
        let done = self.pace.lock().take(now, &self.limits, reads, bytes) + latency;
        // The limits bound every wait: the amount of work divided by its rate.
        std::thread::sleep(done.saturating_sub(now));
    }
}

/// The time at which the simulated device will be idle. Takes the current time as an argument.
#[derive(Debug)]
struct Pace {
    free_at: Duration,
}

impl Pace {
    /// Queue work at `now`; returns when it will be done.
    fn take(&mut self, now: Duration, limits: &ThrottleLimits, reads: u64, bytes: u64) -> Duration {
        let time = |amount: u64, rate: Option<u64>| match rate {
            Some(rate) => Duration::from_secs_f64(amount as f64 / rate.max(1) as f64),
            None => Duration::ZERO,
        };
        let work = time(reads, limits.reads_per_s).max(time(bytes, limits.bytes_per_s));
        self.free_at = self.free_at.max(now) + work;
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ThrottleLimits =
        ThrottleLimits { reads_per_s: Some(1000), bytes_per_s: Some(1 << 20), read_latency: Duration::ZERO };

    #[test]
    fn the_slower_limit_sets_the_pace() {
        let mut pace = Pace { free_at: Duration::ZERO };
        assert_eq!(pace.take(Duration::ZERO, &LIMITS, 100, 4096), Duration::from_millis(100));
        let mut pace = Pace { free_at: Duration::ZERO };
        assert_eq!(pace.take(Duration::ZERO, &LIMITS, 1, 1 << 19), Duration::from_millis(500));
    }

    #[test]
    fn work_queues_behind_work_and_idle_time_is_not_saved_up() {
        let mut pace = Pace { free_at: Duration::ZERO };
        pace.take(Duration::ZERO, &LIMITS, 1000, 0);
        assert_eq!(pace.take(Duration::from_millis(10), &LIMITS, 1000, 0), Duration::from_secs(2));
        assert_eq!(pace.take(Duration::from_secs(10), &LIMITS, 1000, 0), Duration::from_secs(11));
    }

    #[test]
    fn without_limits_nothing_waits() {
        let mut pace = Pace { free_at: Duration::ZERO };
        let now = Duration::from_secs(3);
        assert_eq!(pace.take(now, &ThrottleLimits::default(), u64::MAX, u64::MAX), now);
    }
}
