//! A load generator for servers of the Open Inference Protocol: `rowmill loadtest`.
//!
//! An open loop sends requests at times that do not depend on the server: Poisson arrivals, or those of a trace. A closed
//! loop has a number of senders, each of which sends its next request when the last one has ended. One thread sends and
//! receives; an open loop has a second one, which waits for the times of arrivals. The generator reports how late it was
//! itself, and its CPU time, so that a reader sees when it is the limit.

mod answer;
mod arrivals;
mod connection;
mod examples;
mod grpc;
mod http;
mod options;
mod pacer;
mod recorder;
mod reply;
mod report;
mod run;
mod target;

pub use options::{LoadOptions, Pace};
pub use recorder::{Counts, Percentiles, StatusCount};
pub use report::LoadReport;
pub use run::load;
