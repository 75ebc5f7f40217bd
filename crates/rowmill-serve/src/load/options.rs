//! Options of a load test.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::arrivals::read_trace;
use crate::Failure;

/// When requests arrive.
#[derive(Clone, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: this many senders, each of which sends when its last request is answered.
    Senders(usize),
    /// Open loop: Poisson arrivals, requests per second.
    Rate(f64),
    /// Open loop: the times of a file, one in seconds per line, divided by a speed.
    Trace(PathBuf, f64),
}

/// A run against one model of a server.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// `http://HOST:PORT` or `grpc://HOST:PORT`.
    pub url: String,
    /// The model's name.
    pub model: String,
    /// A bundle or a file of recorded requests, which are sent in turn.
    pub requests: PathBuf,
    /// When they arrive.
    pub pace: Pace,
    /// The measured time; `None`: 10 seconds, or to the end of the trace.
    pub seconds: Option<f64>,
    /// Time before it, in which requests are sent and not counted.
    pub warm_up_s: f64,
    /// The time in which an answer is good. Requests carry it as their timeout.
    pub slo_s: f64,
    /// Seed of Poisson arrivals.
    pub seed: u64,
    /// Connections of an open loop at most.
    pub connections: usize,
    /// Compare answers with the recorded ones, with this tolerance.
    pub check: Option<f64>,
}

/// The longest run and SLO.
const SECONDS_MAX: f64 = 86_400.0;
/// Measured time where the options give none.
const SECONDS: f64 = 10.0;

/// The times of a run, and its trace.
#[derive(Debug)]
pub(super) struct Plan {
    /// From the end of the warm-up to the end of the run.
    pub(super) window: Range<Duration>,
    pub(super) slo: Duration,
    pub(super) trace: Vec<Duration>,
}

impl LoadOptions {
    /// Check the options and read the trace.
    ///
    /// # Errors
    /// Names the option and its value.
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        let within = |name: &str, value: f64, least: f64, most: f64| {
            if value >= least && value <= most {
                return Ok(Duration::from_secs_f64(value));
            }
            Err(Failure::invalid(format!("{name} must be from {least} to {most}, got {value}")))
        };
        let warm_up = within("warm-up", self.warm_up_s, 0.0, SECONDS_MAX)?;
        let slo = within("slo", self.slo_s, 1e-6, SECONDS_MAX)?;
        within("connections", self.connections as f64, 1.0, 65_536.0)?;
        if let Some(tolerance) = self.check {
            within("check", tolerance, 0.0, 1e6)?;
        }
        let mut trace = Vec::new();
        match &self.pace {
            Pace::Senders(senders) => drop(within("senders", *senders as f64, 1.0, 65_536.0)?),
            Pace::Rate(rate) => drop(within("rate", *rate, 1e-3, 1e6)?),
            Pace::Trace(path, speed) => {
                within("speed", *speed, 1e-6, 1e6)?;
                trace = read_trace(path, *speed)?;
            }
        }
        let measured = match (self.seconds, trace.last()) {
            (None, Some(&last)) => {
                if last.as_secs_f64() > SECONDS_MAX {
                    return Err(Failure::invalid(format!(
                        "the trace ends after {last:?}, at most {SECONDS_MAX} s are possible: subtract the first time \
                         from all of them, or give a higher speed"
                    )));
                }
                // The last arrival belongs to the window.
                let end = last + Duration::from_nanos(1);
                end.checked_sub(warm_up).filter(|left| !left.is_zero()).ok_or_else(|| {
                    Failure::invalid(format!(
                        "warm-up is {warm_up:?}, the trace ends after {last:?}: shorten it"
                    ))
                })?
            }
            (seconds, _) => within("seconds", seconds.unwrap_or(SECONDS), 1e-3, SECONDS_MAX)?,
        };
        Ok(Plan { window: warm_up..warm_up + measured, slo, trace })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pace: Pace) -> LoadOptions {
        LoadOptions {
            url: "http://127.0.0.1:1".into(),
            model: "dlrm".into(),
            requests: "bundle".into(),
            pace,
            seconds: None,
            warm_up_s: 1.0,
            slo_s: 0.5,
            seed: 0,
            connections: 8,
            check: None,
        }
    }

    #[test]
    fn a_run_ends_with_its_seconds_or_its_trace() {
        let plan = options(Pace::Senders(3)).plan().unwrap();
        assert_eq!((plan.window.start.as_secs(), plan.window.end.as_secs()), (1, 11));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        std::fs::write(&path, "0\n2\n8\n").unwrap();
        let trace = || Pace::Trace(path.clone(), 2.0);
        assert_eq!(options(trace()).plan().unwrap().window.end, Duration::from_nanos(4_000_000_001));
        let cut = LoadOptions { seconds: Some(2.0), ..options(trace()) };
        assert_eq!(cut.plan().unwrap().window.end.as_secs(), 3);
        std::fs::write(folder.path().join("epoch"), "1795000000\n1795000001\n").unwrap();
        let epoch = || Pace::Trace(folder.path().join("epoch"), 1.0);
        let error = options(epoch()).plan().unwrap_err();
        assert!(error.text.contains("subtract the first time"), "{error}");
        let error = LoadOptions { warm_up_s: 5.0, ..options(trace()) }.plan().unwrap_err();
        assert!(error.text.contains("warm-up is 5s"), "{error}");
    }

    #[test]
    fn wrong_options_are_named_with_their_value() {
        let good = || options(Pace::Rate(5.0));
        for (options, why) in [
            (options(Pace::Rate(0.0)), "rate must be from 0.001 to 1000000, got 0"),
            (options(Pace::Rate(f64::NAN)), "rate must"),
            (options(Pace::Senders(0)), "senders must"),
            (options(Pace::Trace("absent".into(), 0.0)), "speed must"),
            (options(Pace::Trace("absent".into(), 1.0)), "absent"),
            (LoadOptions { seconds: Some(0.0), ..good() }, "seconds must"),
            (LoadOptions { warm_up_s: -1.0, ..good() }, "warm-up must"),
            (LoadOptions { slo_s: 0.0, ..good() }, "slo must"),
            (LoadOptions { connections: 0, ..good() }, "connections must"),
            (LoadOptions { check: Some(f64::INFINITY), ..good() }, "check must"),
        ] {
            let error = options.plan().unwrap_err();
            assert!(error.text.contains(why), "{error} lacks {why:?}");
        }
    }
}
