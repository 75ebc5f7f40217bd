//! How far the lookups of a model run ahead of its dense half.
//!
//! Pooled vectors are much larger than the ids of a request. A request that cannot be in the next two batches of the dense half
//! waits with its ids, so that `wire_memory` bounds few requests with pooled vectors, and not all that wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::lookup_threads::Shared;
use crate::BatchLimits;

/// Batches for which lookups run ahead, for each batch that the dense half runs at once.
const BATCHES_AHEAD: usize = 2;

/// The requests of a model between the start of their lookups and the start of their batch: rows by deadline and number.
#[derive(Debug)]
pub(super) struct Window {
    /// That may always run ahead: each lookup thread has one.
    requests_min: usize,
    requests_max: usize,
    rows_max: u64,
    requests: Mutex<BTreeMap<(Instant, u64), u32>>,
}

/// A request in a window, until it is dropped.
#[derive(Debug)]
pub(super) struct Ahead {
    window: Arc<Window>,
    request: (Instant, u64),
    threads: Arc<Shared>,
}

impl Window {
    /// The window of a dense half with these limits, for a number of lookup threads.
    pub(super) fn new(limits: BatchLimits, threads: usize) -> Arc<Self> {
        let batches = limits.batches_max.saturating_mul(BATCHES_AHEAD);
        Arc::new(Self {
            requests_min: threads,
            requests_max: limits.batch_requests_max.saturating_mul(batches),
            rows_max: u64::from(limits.batch_rows_max).saturating_mul(batches as u64),
            requests: Mutex::default(),
        })
    }

    /// Whether lookups may start for a request with this deadline. Requests with later deadlines do not count: the dense half
    /// runs them later.
    pub(super) fn is_open(&self, deadline: Instant) -> bool {
        let requests = self.requests.lock();
        if requests.len() < self.requests_min {
            return true;
        }
        let (mut count, mut rows) = (0, 0);
        for &of_request in requests.range(..=(deadline, u64::MAX)).map(|(_, rows)| rows) {
            count += 1;
            rows += u64::from(of_request);
            if count >= self.requests_min && (count >= self.requests_max || rows >= self.rows_max) {
                return false;
            }
        }
        true
    }

    /// Lookups start for a request of `rows`.
    pub(super) fn enter(
        self: &Arc<Self>,
        deadline: Instant,
        number: u64,
        rows: u32,
        threads: &Arc<Shared>,
    ) -> Ahead {
        let request = (deadline, number);
        self.requests.lock().insert(request, rows);
        Ahead { window: Arc::clone(self), request, threads: Arc::clone(threads) }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.window.requests.lock().remove(&self.request);
        self.threads.wake();
    }
}
