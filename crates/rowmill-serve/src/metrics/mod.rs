//! What a worker counts and times, without a lock per request: atomics that the threads of a request add to.
//!
//! [`ModelMetrics`] has everything of one model. [`Exposition`] gives it to Prometheus, the page of `page` to people.

mod exposition;
mod half;
mod histogram;
mod model;

pub use exposition::Exposition;
pub(crate) use half::{HalfMetrics, Reason, Turn};
pub(crate) use histogram::Histogram;
pub use model::ModelMetrics;
