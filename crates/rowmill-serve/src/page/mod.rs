//! The status page of a worker: one HTML file at `/`, and the numbers that it reads as JSON at `/status`.
//!
//! The page has no other resources, so that it works without a network. Numbers count from the start of the worker; the
//! page takes differences between two readings.

mod status;

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::routing::get;

pub(crate) use status::{Shown, Status};

const PAGE: &str = include_str!("status.html");
/// The page may run its own script and ask this server, nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

/// `/` and `/status`.
pub(crate) fn routes(status: Status) -> Router {
    let status = Arc::new(status);
    let page = || async {
        let headers = [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        (headers, PAGE)
    };
    let numbers = async move || {
        let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
        (headers, status.json().to_string())
    };
    Router::new().route("/", get(page)).route("/status", get(numbers))
}
