//! The account of a run: what became of the requests that arrived within the measured window, and how long it took.
//!
//! Latency counts from the arrival that was due, not from the moment of sending. So a request that had to wait inside
//! the generator, because the server was slow to answer others, has that wait in its latency (no coordinated omission).

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::answer::difference;
use super::reply::{Reply, Verdict};
use crate::plan::Array;

/// Histograms hold microseconds up to one hour, with three digits.
const MICROS_MAX: u64 = 3_600_000_000;
/// A report lists this many different statuses. Answers with any further status are counted together.
const STATUSES_MAX: usize = 32;

/// Requests by what became of them. Each request counts once in all but the last field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Arrivals within the window.
    pub arrived: u64,
    /// Answered within the SLO.
    pub in_time: u64,
    /// Answered later.
    pub late: u64,
    /// Refused because of load: 429 or `RESOURCE_EXHAUSTED`.
    pub refused: u64,
    /// The deadline passed at the server: 504 or `DEADLINE_EXCEEDED`.
    pub expired: u64,
    /// Without an answer, or with another error.
    pub failed: u64,
    /// Not sent, because all connections were in use.
    pub not_sent: u64,
    /// Answers that differ from the recorded ones, of those in time and late.
    pub wrong: u64,
}

/// Requests of one status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatusCount {
    /// How many.
    pub count: u64,
    /// The error of the first of them; empty for answers.
    pub first: String,
}

/// Percentiles in milliseconds, zeros where nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Percentiles {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
}

/// Counts requests that arrive within a window of the run.
#[derive(Debug)]
pub(super) struct Recorder {
    window: Range<Duration>,
    slo: Duration,
    pub(super) counts: Counts,
    pub(super) statuses: BTreeMap<String, StatusCount>,
    answered: Histogram<u64>,
    refused: Histogram<u64>,
    lag: Histogram<u64>,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// The first answer that differs from the recorded one.
    pub(super) first_wrong: Option<String>,
}

impl Recorder {
    pub(super) fn new(window: Range<Duration>, slo: Duration) -> Self {
        let empty = || Histogram::new_with_bounds(1, MICROS_MAX, 3).expect("the bounds are in order");
        Self {
            window,
            slo,
            counts: Counts::default(),
            statuses: BTreeMap::new(),
            answered: empty(),
            refused: empty(),
            lag: empty(),
            bytes_sent: 0,
            bytes_received: 0,
            first_wrong: None,
        }
    }

    /// Count an arrival for which no connection was free.
    pub(super) fn not_sent(&mut self, at: Duration) {
        if self.window.contains(&at) {
            self.counts.arrived += 1;
            self.counts.not_sent += 1;
        }
    }

    /// Count a request of `bytes` that was due `at`, was sent `lag` later, and ended `ended`. Its outputs are compared with
    /// those of `recorded`, where given.
    pub(super) fn ended(
        &mut self,
        at: Duration,
        lag: Duration,
        ended: Duration,
        bytes: usize,
        reply: &Reply,
        recorded: Option<(&[Array], f64)>,
    ) {
        if !self.window.contains(&at) {
            return;
        }
        let latency = ended.saturating_sub(at);
        self.counts.arrived += 1;
        self.lag.saturating_record(micros(lag));
        self.bytes_sent += bytes as u64;
        self.bytes_received += reply.bytes as u64;
        match reply.verdict {
            Verdict::Answered => {
                self.answered.saturating_record(micros(latency));
                if latency <= self.slo {
                    self.counts.in_time += 1;
                } else {
                    self.counts.late += 1;
                }
            }
            Verdict::Refused => {
                self.counts.refused += 1;
                self.refused.saturating_record(micros(latency));
            }
            Verdict::Expired => self.counts.expired += 1,
            Verdict::Failed => self.counts.failed += 1,
        }
        if let (Some(outputs), Some((recorded, tolerance))) = (&reply.outputs, recorded) {
            let wrong = match outputs {
                Ok(outputs) => difference(outputs, recorded, tolerance),
                Err(text) => Some(text.clone()),
            };
            self.counts.wrong += u64::from(wrong.is_some());
            self.first_wrong = self.first_wrong.take().or(wrong);
        }
        let is_known = self.statuses.contains_key(&reply.status);
        let status = if is_known || self.statuses.len() < STATUSES_MAX { &reply.status } else { "other" };
        let entry = self.statuses.entry(status.into()).or_default();
        if entry.count == 0 {
            entry.first.clone_from(&reply.text);
        }
        entry.count += 1;
    }

    /// Latency of answers.
    pub(super) fn latency(&self) -> Percentiles {
        percentiles(&self.answered)
    }

    /// Latency of refusals.
    pub(super) fn refusals(&self) -> Percentiles {
        percentiles(&self.refused)
    }

    /// How late the generator itself sent.
    pub(super) fn lag(&self) -> Percentiles {
        percentiles(&self.lag)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn percentiles(histogram: &Histogram<u64>) -> Percentiles {
    let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Percentiles {
        count: histogram.len(),
        mean: histogram.mean() / 1e3,
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p99_9: at(0.999),
        max: histogram.max() as f64 / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use rowmill_testkit::Rng64;

    use super::*;
    use crate::{Buffer, DType};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn reply(verdict: Verdict, status: &str) -> Reply {
        let mut reply = Reply::new(verdict, status, 3);
        reply.explain(status);
        reply
    }

    /// Random requests, counted beside by lists.
    #[test]
    fn counts_and_percentiles_are_those_of_a_list() {
        let (window, slo) = (ms(100)..ms(900), ms(50));
        let mut recorder = Recorder::new(window.clone(), slo);
        let mut rng = Rng64::new(3);
        let (mut expected, mut latencies, mut refusals) = (Counts::default(), Vec::new(), Vec::new());
        for _ in 0..20_000 {
            let (at, latency) = (ms(rng.below(1000)), Duration::from_micros(rng.below(100_000)));
            let is_counted = at >= window.start && at < window.end;
            let kind = rng.below(5);
            expected.arrived += u64::from(is_counted);
            match (kind, is_counted) {
                (3, _) => recorder.not_sent(at),
                (0, _) => recorder.ended(at, ms(1), at + latency, 10, &reply(Verdict::Answered, "200"), None),
                (1, _) => recorder.ended(at, ms(1), at + latency, 10, &reply(Verdict::Refused, "429"), None),
                (4, _) => recorder.ended(at, ms(1), at + latency, 10, &reply(Verdict::Expired, "504"), None),
                _ => recorder.ended(at, ms(1), at + latency, 10, &reply(Verdict::Failed, "503"), None),
            }
            match (kind, is_counted) {
                (0, true) => {
                    latencies.push(latency);
                    *(if latency <= slo { &mut expected.in_time } else { &mut expected.late }) += 1;
                }
                (1, true) => {
                    refusals.push(latency);
                    expected.refused += 1;
                }
                (2, true) => expected.failed += 1,
                (3, true) => expected.not_sent += 1,
                (4, true) => expected.expired += 1,
                _ => {}
            }
        }
        assert_eq!(recorder.counts, expected);
        let ended = expected.arrived - expected.not_sent;
        assert_eq!((recorder.bytes_sent, recorder.bytes_received), (10 * ended, 3 * ended));
        for (found, list) in [(recorder.latency(), &mut latencies), (recorder.refusals(), &mut refusals)] {
            list.sort();
            assert_eq!(found.count, list.len() as u64);
            for (found, quantile) in
                [(found.p50, 0.5), (found.p90, 0.9), (found.p99, 0.99), (found.p99_9, 0.999)]
            {
                let rank = ((quantile * list.len() as f64).ceil() as usize).max(1) - 1;
                let exact = list[rank].as_secs_f64() * 1e3;
                assert!((found - exact).abs() <= 0.002 * exact + 0.001, "{found} for {exact}");
            }
        }
        let counted: u64 = recorder.statuses.values().map(|status| status.count).sum();
        assert_eq!(counted, ended);
        assert_eq!(recorder.statuses["429"], StatusCount { count: expected.refused, first: "429".into() });
    }

    /// A server stops for a second. Arrivals continue, so half of the requests of that second wait more than half of it.
    #[test]
    fn a_stall_counts_for_every_arrival_during_it() {
        let mut recorder = Recorder::new(ms(0)..ms(2000), ms(10));
        for at in 0..2000 {
            let answered = if at < 1000 { 1000 } else { at + 1 };
            recorder.ended(ms(at), ms(0), ms(answered), 0, &reply(Verdict::Answered, "200"), None);
        }
        let latency = recorder.latency();
        assert!((latency.p90 - 800.0).abs() < 2.0, "{latency:?}");
        assert!((latency.max - 1000.0).abs() < 1.0, "{latency:?}");
        // The last ten of the stall wait 1 to 10 ms.
        assert_eq!((recorder.counts.in_time, recorder.counts.late), (1010, 990));
    }

    #[test]
    fn wrong_answers_count_once_and_the_first_is_kept() {
        let output =
            |value: u8| Array { dtype: DType::UInt8, shape: vec![1], data: Buffer::from(&[value][..]) };
        let mut recorder = Recorder::new(ms(0)..ms(1000), ms(10));
        for value in [7, 8, 9] {
            let answer = Reply { outputs: Some(Ok(vec![output(value)])), ..reply(Verdict::Answered, "200") };
            recorder.ended(ms(1), ms(0), ms(2), 0, &answer, Some((&[output(7)], 1e-3)));
        }
        let unreadable = Reply { outputs: Some(Err("torn".into())), ..reply(Verdict::Answered, "200") };
        recorder.ended(ms(1), ms(0), ms(2), 0, &unreadable, Some((&[output(7)], 1e-3)));
        assert_eq!((recorder.counts.in_time, recorder.counts.wrong), (4, 3));
        assert_eq!(recorder.first_wrong.as_deref(), Some("output 0 has 8, recorded is 7"));
    }

    #[test]
    fn statuses_are_bounded() {
        let mut recorder = Recorder::new(ms(0)..ms(1000), ms(10));
        for number in 0..100 {
            recorder.ended(ms(1), ms(0), ms(2), 0, &reply(Verdict::Failed, &number.to_string()), None);
        }
        assert_eq!(recorder.statuses.len(), STATUSES_MAX + 1);
        assert_eq!(recorder.statuses["other"].count, 68);
    }
}
