//! The state of a worker and its models as JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use rowmill_server::Drain;
use serde_json::{Map, Value, json};

use crate::metrics::Histogram;
use crate::{Arena, ModelMetrics};

/// A worker, as its page shows it.
#[derive(Debug)]
pub(crate) struct Status {
    /// Its models.
    pub(crate) models: Vec<Shown>,
    /// Where tensors lie.
    pub(crate) arena: Arena,
    /// Whether the models are warm.
    pub(crate) is_ready: Arc<AtomicBool>,
    /// What says that the process ends.
    pub(crate) drain: Drain,
    /// When the worker started.
    pub(crate) started: Instant,
}

/// A model, as the page shows it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// Its counters.
    pub(crate) metrics: Arc<ModelMetrics>,
    /// Whether it takes requests.
    pub(crate) loaded: Arc<AtomicBool>,
    /// Where each of its halves runs, in the order of a request.
    pub(crate) halves: Vec<(&'static str, String)>,
}

impl Status {
    pub(super) fn json(&self) -> Value {
        let bounds: Vec<f64> = Histogram::bounds_s().collect();
        json!({
            "server": "rowmill",
            "version": env!("CARGO_PKG_VERSION"),
            "state": self.state(),
            "uptime_s": self.started.elapsed().as_secs_f64(),
            "wire_memory": { "held_bytes": self.arena.held_bytes(), "bytes": self.arena.bytes() },
            "bounds_s": bounds,
            "models": self.models.iter().map(|model| self.model(model)).collect::<Vec<_>>(),
        })
    }

    fn state(&self) -> &'static str {
        if self.drain.has_started() {
            "ending"
        } else if self.is_ready.load(Relaxed) {
            "ready"
        } else {
            "warming up"
        }
    }

    fn model(&self, shown: &Shown) -> Value {
        let metrics = &shown.metrics;
        let requests: Map<String, Value> =
            metrics.by_status().map(|(status, count)| (status.to_string(), count.into())).collect();
        let refusals: Vec<Value> = metrics
            .refusals()
            .map(|(half, reason, count)| json!({ "half": half, "reason": reason.name(), "count": count }))
            .collect();
        let halves: Vec<Value> = shown
            .halves
            .iter()
            .map(|(name, at)| {
                let here = metrics.halves().into_iter().find(|(half, _)| half == name);
                // The queue of a half in another process is shown there.
                let queued = here.filter(|_| !at.contains("://")).map(|(_, half)| half.waiting());
                json!({ "half": name, "at": at, "queued": queued })
            })
            .collect();
        let stages = metrics.stages().into_iter().chain([("whole", &metrics.whole)]);
        let stages: Vec<Value> = stages
            .filter(|&(name, times)| name == "whole" || times.count() > 0)
            .map(|(name, times)| stage(name, times))
            .collect();
        json!({
            "name": metrics.name,
            "state": if shown.loaded.load(Relaxed) { self.state() } else { "unloaded" },
            "halves": halves,
            "open": metrics.open.load(Relaxed),
            "requests": requests,
            "refusals": refusals,
            "rows": metrics.lookups().map(|found| json!({ "looked_up": found.rows, "read": found.cold })),
            "stages": stages,
        })
    }
}

/// A stage, with the buckets that hold durations by their numbers.
fn stage(name: &str, times: &Histogram) -> Value {
    let counts = times.counts();
    let buckets: Vec<[u64; 2]> =
        (0..).zip(&counts).filter(|&(_, &count)| count > 0).map(|(bucket, &count)| [bucket, count]).collect();
    json!({
        "stage": name,
        "count": counts.iter().sum::<u64>(),
        "seconds": times.ns() as f64 * 1e-9,
        "buckets": buckets,
    })
}
