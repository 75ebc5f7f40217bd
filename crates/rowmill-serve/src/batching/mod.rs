//! Which requests run together, and when: earliest deadline first, as many batches at once as may run.
//!
//! [`Batcher`] decides, without a thread or a clock. [`Dispatcher`] puts it between the connections that submit requests
//! and the threads that run batches.

mod batcher;
mod core_share;
mod dispatcher;
mod service_time;

pub use batcher::{BatchLimits, Batcher, Job, Next, Place, Refusal, Refused};
pub use core_share::CoreShare;
pub use dispatcher::{Batch, Dispatcher, Reservation, Submitted};
pub use service_time::ServiceTime;
