//! What is counted of a model's requests: for the protocol's statistics, and as metrics for Prometheus.

use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Bounds of the buckets of latencies, in seconds.
const BUCKETS: [f64; 14] =
    [0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 4.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    model: String,
    status: u16,
}

/// Metrics of all models. Clones count together.
#[derive(Clone, Debug)]
pub struct Statistics {
    requests: Family<OfOutcome, Counter>,
    latency: Family<OfModel, Histogram>,
    /// Nanoseconds of requests that were answered, and of those that were not.
    answered_ns: Family<OfModel, Counter>,
    failed_ns: Family<OfModel, Counter>,
    answered: Family<OfModel, Counter>,
    failed: Family<OfModel, Counter>,
    open: Family<OfModel, Gauge>,
}

/// A request that is being answered. Dropped without an outcome, it counts as given up by its sender.
pub(super) struct Open {
    statistics: Statistics,
    model: OfModel,
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

impl Default for Statistics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            answered_ns: Family::default(),
            failed_ns: Family::default(),
            answered: Family::default(),
            failed: Family::default(),
            open: Family::default(),
        }
    }
}

impl Statistics {
    /// Publish the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "rowmill_serve_requests",
            "Inference requests by model and HTTP status",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "rowmill_serve_request_duration",
            "Time from the head of a request to its response, of answered requests",
            Unit::Seconds,
            self.latency.clone(),
        );
        registry.register("rowmill_serve_open_requests", "Requests being answered", self.open.clone());
    }

    /// Count a request that began at `begin`.
    pub(super) fn open(&self, model: &str, begin: Instant) -> Open {
        let model = OfModel { model: model.into() };
        self.open.get_or_create(&model).inc();
        Open { statistics: self.clone(), model, begin, status: GIVEN_UP }
    }

    /// Requests of a model that were answered, and those that were not.
    pub(super) fn of(&self, model: &str) -> (Counted, Counted) {
        let model = OfModel { model: model.into() };
        let of = |count: &Family<OfModel, Counter>, ns: &Family<OfModel, Counter>| Counted {
            count: count.get_or_create(&model).get(),
            ns: ns.get_or_create(&model).get(),
        };
        (of(&self.answered, &self.answered_ns), of(&self.failed, &self.failed_ns))
    }
}

impl Open {
    /// Count the request with this HTTP status.
    pub(super) fn end(mut self, status: u16) {
        self.status = status;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Self { statistics, model, begin, status } = self;
        let taken: Duration = begin.elapsed();
        let ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        statistics.open.get_or_create(model).dec();
        let outcome = OfOutcome { model: model.model.clone(), status: *status };
        statistics.requests.get_or_create(&outcome).inc();
        if *status == ANSWERED {
            statistics.latency.get_or_create(model).observe(taken.as_secs_f64());
            statistics.answered.get_or_create(model).inc();
            statistics.answered_ns.get_or_create(model).inc_by(ns);
        } else {
            statistics.failed.get_or_create(model).inc();
            statistics.failed_ns.get_or_create(model).inc_by(ns);
        }
    }
}
