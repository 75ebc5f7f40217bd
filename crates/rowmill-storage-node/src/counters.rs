//! Counters of a subsystem, for metrics and log pages.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use rowmill_nvme::Health;

/// Bytes of one unit of data in the health log.
const UNIT_BYTES: u64 = 512_000;

/// The counters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Reads,
    ReadBytes,
    Writes,
    WrittenBytes,
    Flushes,
    Stages,
    /// Ids of stage commands.
    Lookups,
    Fetches,
    /// Commands of fills, and frames of the feed.
    Applies,
    /// Commands of I/O queues that were answered with an error.
    Errors,
}

impl Count {
    pub(crate) const ALL: [Count; 10] = [
        Count::Reads,
        Count::ReadBytes,
        Count::Writes,
        Count::WrittenBytes,
        Count::Flushes,
        Count::Stages,
        Count::Lookups,
        Count::Fetches,
        Count::Applies,
        Count::Errors,
    ];

    /// The name of the metric, without the suffix of its unit.
    pub(crate) fn metric(self) -> &'static str {
        match self {
            Count::Reads => "rowmill_storage_reads",
            Count::ReadBytes => "rowmill_storage_read",
            Count::Writes => "rowmill_storage_writes",
            Count::WrittenBytes => "rowmill_storage_written",
            Count::Flushes => "rowmill_storage_flushes",
            Count::Stages => "rowmill_storage_stages",
            Count::Lookups => "rowmill_storage_lookups",
            Count::Fetches => "rowmill_storage_fetches",
            Count::Applies => "rowmill_storage_applies",
            Count::Errors => "rowmill_storage_errors",
        }
    }

    pub(crate) fn help(self) -> &'static str {
        match self {
            Count::Reads => "Read commands",
            Count::ReadBytes => "Bytes of blocks read by hosts",
            Count::Writes => "Write commands",
            Count::WrittenBytes => "Bytes of blocks written by hosts",
            Count::Flushes => "Flush commands",
            Count::Stages => "Stage commands",
            Count::Lookups => "Rows looked up for stage commands",
            Count::Fetches => "Fetch commands",
            Count::Applies => "Commands of fills, and frames of the feed",
            Count::Errors => "Commands of I/O queues answered with an error",
        }
    }

    pub(crate) fn is_bytes(self) -> bool {
        matches!(self, Count::ReadBytes | Count::WrittenBytes)
    }
}

/// What a subsystem has done since the node started.
#[derive(Debug)]
pub(crate) struct Counters {
    started: Instant,
    counts: [AtomicU64; Count::ALL.len()],
}

impl Counters {
    pub(crate) fn new(now: Instant) -> Counters {
        Counters { started: now, counts: Default::default() }
    }

    pub(crate) fn add(&self, count: Count, number: u64) {
        self.counts[count as usize].fetch_add(number, Relaxed);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    /// The health log.
    pub(crate) fn health(&self, now: Instant) -> Health {
        let count = |count| u128::from(self.get(count)).into();
        let units = |count| u128::from(self.get(count).div_ceil(UNIT_BYTES)).into();
        let mut health = Health::new();
        health.units_read = units(Count::ReadBytes);
        health.units_written = units(Count::WrittenBytes);
        health.reads = count(Count::Reads);
        health.writes = count(Count::Writes);
        health.hours = u128::from(now.saturating_duration_since(self.started).as_secs() / 3600).into();
        health
    }
}
