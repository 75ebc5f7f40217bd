use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use rowmill_nvme::Health;

/// Bytes of one unit of data in the health log.
const UNIT_BYTES: u64 = 512_000;

/// What a node has done since it started.
#[derive(Debug)]
pub(crate) struct Counters {
    started: Instant,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn new(now: Instant) -> Counters {
        let zero = AtomicU64::default;
        Counters { started: now, reads: zero(), read_bytes: zero(), writes: zero(), written_bytes: zero() }
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.written_bytes.fetch_add(bytes, Relaxed);
    }

    /// The health log.
    pub(crate) fn health(&self, now: Instant) -> Health {
        let wide = |value: u64| u128::from(value).into();
        let units = |bytes: &AtomicU64| wide(bytes.load(Relaxed).div_ceil(UNIT_BYTES));
        let mut health = Health::new();
        health.units_read = units(&self.read_bytes);
        health.units_written = units(&self.written_bytes);
        health.reads = wide(self.reads.load(Relaxed));
        health.writes = wide(self.writes.load(Relaxed));
        health.hours = wide(now.saturating_duration_since(self.started).as_secs() / 3600);
        health
    }
}
