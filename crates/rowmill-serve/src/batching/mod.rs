//! Which requests run together, and when: earliest deadline first, as many batches at once as may run.
//!
//! [`Batcher`] decides, without a thread or a clock. [`Dispatcher`] puts it between the connections that submit requests
//! and the threads that run batches.

mod batch_part;
mod batcher;
mod dispatcher;
mod service_time;

pub use batch_part::BatchPart;
pub use batcher::{BatchLimits, Batcher, Job, Next, Place, Refusal, Refused};
pub use dispatcher::{Batch, Dispatcher, Reservation, Submitted};
pub use service_time::ServiceTime;
