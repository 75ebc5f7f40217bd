//! The report of a load test.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

use super::options::{LoadOptions, Pace};
use super::recorder::{Counts, Percentiles, Recorder, StatusCount};

/// A sending lag up to this p99 is never worth a warning, in milliseconds.
const LAG_MS: f64 = 0.5;
/// The share of one core from which the generator may limit the rate.
const BUSY: f64 = 0.9;
/// Share of Poisson arrivals that may be missing from the window.
const MISSING: f64 = 0.1;

/// What a run has measured. Rates are per second of the measured window, latencies are milliseconds from the arrival that
/// was due.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The server.
    pub url: String,
    /// The model.
    pub model: String,
    /// "senders", "rate" or "trace".
    pub mode: &'static str,
    /// Senders of a closed loop, else the bound on connections.
    pub connections: usize,
    /// Seed of Poisson arrivals.
    pub seed: u64,
    /// Length of the measured window.
    pub seconds: f64,
    /// Time before it.
    pub warm_up_s: f64,
    /// The SLO in seconds.
    pub slo_s: f64,
    /// Arrivals per second.
    pub offered_per_s: f64,
    /// Answers per second.
    pub answered_per_s: f64,
    /// Answers within the SLO per second.
    pub goodput_per_s: f64,
    /// Requests by what became of them.
    pub counts: Counts,
    /// Requests that were sent, by status: a status of HTTP or gRPC, "unreachable", "disconnected" or "unanswered".
    pub statuses: BTreeMap<String, StatusCount>,
    /// Latency of answers.
    pub latency_ms: Percentiles,
    /// Latency of refusals.
    pub refused_ms: Percentiles,
    /// How late the generator itself sent requests.
    pub lag_ms: Percentiles,
    /// Bytes of the bodies of requests.
    pub bytes_sent: u64,
    /// Bytes of the bodies of replies.
    pub bytes_received: u64,
    /// CPU time of the generator within the window, in seconds.
    pub cpu_s: f64,
    /// The first answer that differs from the recorded one.
    pub first_wrong: Option<String>,
    /// Reasons to doubt these numbers.
    pub warnings: Vec<String>,
}

impl LoadReport {
    pub(super) fn new(
        options: &LoadOptions,
        window: &Range<Duration>,
        cpu: Duration,
        recorder: Recorder,
    ) -> Self {
        let seconds = window.end.saturating_sub(window.start).as_secs_f64();
        let per_s = |count: u64| count as f64 / seconds;
        let (mode, connections) = match &options.pace {
            Pace::Senders(senders) => ("senders", *senders),
            Pace::Rate(_) => ("rate", options.connections),
            Pace::Trace(..) => ("trace", options.connections),
        };
        let counts = recorder.counts;
        let mut report = Self {
            url: options.url.clone(),
            model: options.model.clone(),
            mode,
            connections,
            seed: options.seed,
            seconds,
            warm_up_s: options.warm_up_s,
            slo_s: options.slo_s,
            offered_per_s: per_s(counts.arrived),
            answered_per_s: per_s(counts.in_time + counts.late),
            goodput_per_s: per_s(counts.in_time),
            counts,
            latency_ms: recorder.latency(),
            refused_ms: recorder.refusals(),
            lag_ms: recorder.lag(),
            bytes_sent: recorder.bytes_sent,
            bytes_received: recorder.bytes_received,
            cpu_s: cpu.as_secs_f64(),
            statuses: recorder.statuses,
            first_wrong: recorder.first_wrong,
            warnings: Vec::new(),
        };
        report.warnings = report.doubts(options);
        report
    }

    /// The report as JSON.
    ///
    /// # Panics
    /// Never: its names are strings.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a report is JSON")
    }

    fn doubts(&self, options: &LoadOptions) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.lag_ms.p99 > LAG_MS.max(self.latency_ms.p50 / 10.0) {
            doubts.push(format!(
                "the generator sent requests late, by {:.1} ms at p99: latencies contain this time; lower the rate, or \
                 give the generator cores of its own",
                self.lag_ms.p99
            ));
        }
        if self.cpu_s > BUSY * self.seconds {
            doubts.push(format!(
                "the generator used {:.0} % of one core: it may limit the rate; start several generators",
                100.0 * self.cpu_s / self.seconds
            ));
        }
        if self.counts.not_sent > 0 {
            doubts.push(format!(
                "{} requests were not sent, because {} connections were in use: the latency of others does not show \
                 them; raise --connections",
                self.counts.not_sent, self.connections
            ));
        }
        if let Pace::Rate(rate) = options.pace {
            let expected = rate * self.seconds;
            // Four deviations of a Poisson count, for short runs.
            if expected - self.counts.arrived as f64 > MISSING * expected + 4.0 * expected.sqrt() {
                doubts.push(format!(
                    "{:.1} requests per second arrived, {rate} were asked for",
                    self.offered_per_s
                ));
            }
        }
        doubts
    }
}
