//! Counts and durations of requests per model, for the statistics calls of the protocol.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::ModelMetrics;

/// A request that is being answered. Dropped without an outcome, it counts as given up by its sender.
pub(super) struct Open {
    metrics: Arc<ModelMetrics>,
    begin: Instant,
    status: u16,
}

/// Some requests of a model, and the time that they took together.
pub(super) struct Counted {
    pub(super) count: u64,
    pub(super) ns: u64,
}

/// The status of an answered request.
pub(super) const ANSWERED: u16 = 200;
/// The status of nginx for a client that closed the connection.
const GIVEN_UP: u16 = 499;

/// Requests of a model that were answered, and those that were not.
pub(super) fn counted(metrics: &ModelMetrics) -> (Counted, Counted) {
    let failed = metrics.by_status().filter(|&(status, _)| status != ANSWERED).map(|(_, count)| count).sum();
    (
        Counted { count: metrics.whole.count(), ns: metrics.whole.ns() },
        Counted { count: failed, ns: metrics.failed_ns.load(Relaxed) },
    )
}

impl Open {
    /// A request to a model that began at `begin`.
    pub(super) fn new(metrics: &Arc<ModelMetrics>, begin: Instant) -> Self {
        metrics.open.fetch_add(1, Relaxed);
        Self { metrics: Arc::clone(metrics), begin, status: GIVEN_UP }
    }

    /// Count the request with this HTTP status.
    pub(super) fn end(mut self, status: u16) {
        self.status = status;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Self { metrics, begin, status } = self;
        let taken = begin.elapsed();
        metrics.open.fetch_sub(1, Relaxed);
        metrics.count(*status);
        if *status == ANSWERED {
            metrics.whole.observe(taken);
        } else {
            metrics.failed_ns.fetch_add(u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
    }
}
