//! The load generator of `rowmill loadtest`.

use std::path::PathBuf;

use pyo3::prelude::*;
use rowmill_serve::{LoadOptions, Pace, load};

use crate::errors::invalid;
use crate::interrupt::interruptible;
use crate::serve::raised;

/// Offer load to a server; returns the report as JSON.
#[pyfunction]
#[pyo3(signature = (url, model, requests, *, senders, rate, trace, speed, seconds, warm_up_s, slo_s, seed, connections, check))]
#[expect(clippy::too_many_arguments, reason = "the options of a run, by name")]
pub(crate) fn loadtest(
    py: Python<'_>,
    url: String,
    model: String,
    requests: PathBuf,
    senders: Option<usize>,
    rate: Option<f64>,
    trace: Option<PathBuf>,
    speed: f64,
    seconds: Option<f64>,
    warm_up_s: f64,
    slo_s: f64,
    seed: u64,
    connections: usize,
    check: Option<f64>,
) -> PyResult<String> {
    let pace = match (senders, rate, trace) {
        (Some(senders), None, None) => Pace::Senders(senders),
        (None, Some(rate), None) => Pace::Rate(rate),
        (None, None, Some(trace)) => Pace::Trace(trace, speed),
        _ => return Err(invalid(py, "give one of senders, rate and trace")),
    };
    let options =
        LoadOptions { url, model, requests, pace, seconds, warm_up_s, slo_s, seed, connections, check };
    let report = interruptible(py, |interrupted| load(&options, interrupted))?;
    report.map(|report| report.json()).map_err(|failure| raised(py, &failure))
}
