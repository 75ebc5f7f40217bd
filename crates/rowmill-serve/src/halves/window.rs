//! How far the lookups of a model run ahead of its dense half.
//!
//! Pooled vectors are much larger than the ids of a request. A request that cannot be in the next batch of the dense half waits
//! with its ids: with more pooled vectors ahead, batches took longer (decision 0021), and `wire_memory` bounds those that wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::Program;
use super::lookup_threads::Shared;

/// The requests of a model between the start of their lookups and the start of their batch: rows by deadline and number.
#[derive(Debug)]
pub(super) struct Window {
    /// That may always run ahead: each lookup thread has one.
    requests_min: usize,
    dense: Program,
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
    /// The window of a dense half, for a number of lookup threads.
    pub(super) fn new(dense: Program, threads: usize) -> Arc<Self> {
        Arc::new(Self { requests_min: threads, dense, requests: Mutex::default() })
    }

    /// Whether lookups may start for a request with this deadline. Requests with later deadlines do not count: the dense half
    /// runs them later.
    pub(super) fn is_open(&self, deadline: Instant) -> bool {
        let requests = self.requests.lock();
        if requests.len() < self.requests_min {
            return true;
        }
        let (limits, batches) = (self.dense.limits(), self.dense.batches());
        let requests_max = limits.batch_requests_max.saturating_mul(batches);
        let rows_max = u64::from(limits.batch_rows_max).saturating_mul(batches as u64);
        let (mut count, mut rows) = (0, 0);
        for &of_request in requests.range(..=(deadline, u64::MAX)).map(|(_, rows)| rows) {
            count += 1;
            rows += u64::from(of_request);
            if count >= self.requests_min && (count >= requests_max || rows >= rows_max) {
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
