//! What a store counts, and the figures that it reports.
//!
//! Counters are added to by operations. The figures of a store, of its groups and of its tables are gathered from them
//! and from the state of the store, and formatted as Prometheus text.

mod stats;

pub(crate) use stats::{Counters, StalenessCounts};
pub use stats::{GroupStats, Stats, TableStats};
