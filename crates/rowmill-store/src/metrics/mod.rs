//! Counters of a store, and the metrics that it reports.
//!
//! Operations add to counters. The metrics of a store, its groups and its tables are declared in one list
//! with name, kind, unit and help. Prometheus text and the dictionaries of Python are generated from that
//! list.

mod counters;
mod metric;
mod prometheus;
mod stats;

pub(crate) use counters::{Counters, StalenessCounts};
pub use metric::{Metric, MetricKind, MetricUnit, MetricValue};
pub use stats::{GroupStats, Stats, TableStats};
