//! The HTTP port of every process that listens: `/metrics` and `/healthz`.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;

use crate::Drain;

/// Type of the text that Prometheus reads.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `/metrics` with everything in `registry`, and `/healthz`: 200 while the process takes work, 503 once it drains.
/// A load balancer that asks `/healthz` stops sending work before the process ends.
pub fn router(registry: Registry, drain: &Drain) -> Router {
    let registry = Arc::new(registry);
    let drain = drain.clone();
    Router::new()
        .route("/metrics", get(async move || metrics(&registry)))
        .route("/healthz", get(async move || health(&drain)))
}

fn metrics(registry: &Registry) -> axum::response::Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode metrics: {error}\n")).into_response()
        }
    }
}

fn health(drain: &Drain) -> (StatusCode, &'static str) {
    if drain.has_started() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}
