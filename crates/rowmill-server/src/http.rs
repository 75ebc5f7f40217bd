//! The HTTP port of every process that listens: `/metrics` and `/healthz`.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;

use crate::Drain;

/// Type of `OpenMetrics`, which Prometheus asks for.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Type of the older text of Prometheus, which all its tools read.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `/metrics` with everything in `registry`, and `/healthz`: 200 while the process takes work, 503 once it drains.
/// A load balancer that asks `/healthz` stops sending work before the process ends.
pub fn router(registry: Registry, drain: &Drain) -> Router {
    let registry = Arc::new(registry);
    let drain = drain.clone();
    Router::new()
        .route("/metrics", get(async move |headers: HeaderMap| metrics(&registry, &headers)))
        .route("/healthz", get(async move || health(&drain)))
}

fn metrics(registry: &Registry, asked: &HeaderMap) -> axum::response::Response {
    let mut text = String::new();
    if let Err(error) = prometheus_client::encoding::text::encode(&mut text, registry) {
        return (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode metrics: {error}\n"))
            .into_response();
    }
    let accepts = asked.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    if accepts.into_iter().any(|accept| accept.contains("application/openmetrics-text")) {
        ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response()
    } else {
        ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], prometheus_text(&text)).into_response()
    }
}

/// `OpenMetrics` as the older text: counters are named there as their samples are, with `_total`, and units and the mark
/// of the end are unknown.
fn prometheus_text(open_metrics: &str) -> String {
    let counters: HashSet<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let about =
            ["# HELP ", "# TYPE "].into_iter().find_map(|start| Some((start, line.strip_prefix(start)?)));
        match about.and_then(|(start, rest)| Some((start, rest.split_once(' ')?))) {
            Some((start, (name, rest))) if counters.contains(name) => {
                let _ = writeln!(text, "{start}{name}_total {rest}");
            }
            _ => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

fn health(drain: &Drain) -> (StatusCode, &'static str) {
    if drain.has_started() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_text_names_counters_as_their_samples() {
        let text = "# HELP asked Requests.\n# TYPE asked counter\nasked_total{a=\"b c\"} 1\n# HELP held_bytes Memory.\n\
                    # TYPE held_bytes gauge\n# UNIT held_bytes bytes\nheld_bytes 2\n# EOF\n";
        let expected = "# HELP asked_total Requests.\n# TYPE asked_total counter\nasked_total{a=\"b c\"} 1\n\
                        # HELP held_bytes Memory.\n# TYPE held_bytes gauge\nheld_bytes 2\n";
        assert_eq!(prometheus_text(text), expected);
    }
}
