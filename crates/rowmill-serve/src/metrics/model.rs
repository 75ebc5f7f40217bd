//! Counters and durations of one model.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rowmill_store::Store;

use super::{HalfMetrics, Histogram, Reason};

/// The statuses by which requests are counted. The last but two is that of nginx for a client that closed the connection.
pub(crate) const STATUSES: [u16; 11] = [200, 400, 404, 408, 411, 413, 429, 499, 500, 503, 504];

/// Counters and histograms of a model. Times of requests that warm it up are not in the histograms.
#[derive(Debug)]
pub struct ModelMetrics {
    /// The model's name.
    pub(crate) name: String,
    /// Inputs from requests, on a lookup thread, where the CPU half is no plan that runs there.
    pub(crate) inputs: Arc<HalfMetrics>,
    /// The CPU half. A plan includes its inputs.
    pub(crate) cpu: Arc<HalfMetrics>,
    /// The dense half, where it is in this process.
    pub(crate) dense: Arc<HalfMetrics>,
    /// Post-processing.
    pub(crate) post: Arc<HalfMetrics>,
    /// From a message to the dense half in another process to its reply.
    pub(crate) crossing: Histogram,
    /// From outputs to a response.
    pub(crate) encode: Histogram,
    /// From the head of a request to its response, of answered requests.
    pub(crate) whole: Histogram,
    /// Nanoseconds of requests that were not answered.
    pub(crate) failed_ns: AtomicU64,
    /// Requests being answered.
    pub(crate) open: AtomicU64,
    statuses: [AtomicU64; STATUSES.len()],
    rows: OnceLock<Arc<Store>>,
}

/// Lookups of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookups {
    /// Distinct rows per request, summed.
    pub(crate) rows: u64,
    /// Those that were read from the device.
    pub(crate) cold: u64,
    /// Ids pooled on a slower path.
    pub(crate) apart: u64,
}

impl ModelMetrics {
    /// Metrics of a model that has had no request.
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            inputs: Arc::default(),
            cpu: Arc::default(),
            dense: Arc::default(),
            post: Arc::default(),
            crossing: Histogram::default(),
            encode: Histogram::default(),
            whole: Histogram::default(),
            failed_ns: AtomicU64::new(0),
            open: AtomicU64::new(0),
            statuses: std::array::from_fn(|_| AtomicU64::new(0)),
            rows: OnceLock::new(),
        })
    }

    /// Count lookups in `rows` for this model.
    pub(crate) fn set_rows(&self, rows: &Arc<Store>) {
        // A model has one store; a second one would not be counted.
        let _ = self.rows.set(Arc::clone(rows));
    }

    /// Lookups so far, warm-up included; `None` where the model has no rows here.
    pub(crate) fn lookups(&self) -> Option<Lookups> {
        let stats = self.rows.get()?.stats();
        Some(Lookups { rows: stats.rows_looked_up, cold: stats.cold_reads, apart: stats.lookups_apart })
    }

    /// Its halves with their names.
    pub(crate) fn halves(&self) -> [(&'static str, &HalfMetrics); 4] {
        [("inputs", &self.inputs), ("cpu", &self.cpu), ("dense", &self.dense), ("post", &self.post)]
    }

    /// What a request goes through, in this order, with the time that it takes.
    pub(crate) fn stages(&self) -> [(&'static str, &Histogram); 10] {
        [
            ("inputs_queue", &self.inputs.wait),
            ("inputs", &self.inputs.run),
            ("cpu_queue", &self.cpu.wait),
            ("cpu", &self.cpu.run),
            ("crossing", &self.crossing),
            ("dense_queue", &self.dense.wait),
            ("dense", &self.dense.run),
            ("post_queue", &self.post.wait),
            ("post", &self.post.run),
            ("encode", &self.encode),
        ]
    }

    /// Requests that halves refused, by half and reason, those that occurred.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (&'static str, Reason, u64)> + '_ {
        self.halves().into_iter().flat_map(|(name, half)| {
            let counts = Reason::ALL.into_iter().map(move |reason| (name, reason, half.refused(reason)));
            counts.filter(|&(_, _, count)| count > 0)
        })
    }

    /// Count a request by its HTTP status.
    pub(crate) fn count(&self, status: u16) {
        let place = STATUSES.iter().position(|&known| known == status);
        debug_assert!(place.is_some(), "{status} is not among the statuses");
        if let Some(place) = place {
            self.statuses[place].fetch_add(1, Relaxed);
        }
    }

    /// Requests by HTTP status, those that occurred.
    pub(crate) fn by_status(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let counts = self.statuses.iter().map(|count| count.load(Relaxed));
        STATUSES.into_iter().zip(counts).filter(|&(status, count)| status == 200 || count > 0)
    }

    /// Forget the times of requests so far, which warmed the model up.
    pub(crate) fn forget_warm_up(&self) {
        for (_, stage) in self.stages() {
            stage.clear();
        }
    }
}
