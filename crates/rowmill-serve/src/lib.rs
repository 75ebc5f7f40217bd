//! Serving a model in two halves: what the processes send each other, and in which order requests run.

mod arena;
mod batching;
mod cpu_time;
mod failure;
mod front_door;
mod halves;
mod load;
mod messages;
mod metrics;
mod page;
mod per;
mod plan;
mod row_source;
mod transform;
mod transport;
mod worker;

pub use arena::{Arena, ArenaError, Buffer, Lease};
pub use batching::{
    Batch, BatchLimits, BatchPart, Batcher, Dispatcher, Job, Next, Place, Refusal, Refused, Reservation,
    ServiceTime, Submitted,
};
pub use failure::Failure;
pub use front_door::{Ask, CheckTime, FrontDoor, Given, Infer, Model, TensorSpec};
pub use halves::{Program, Task, TopK, split};
pub use load::{Counts, LoadOptions, LoadReport, Pace, Percentiles, StatusCount, load};
pub use messages::{
    DType, HEADER_BYTES, Header, Intake, Kind, Limits, Message, MessageError, Received, SMALL_BYTES,
    SpoiledCause, Status, StreamError, Tensor, TensorName, VERSION, encode, read,
};
pub use metrics::{Exposition, ModelMetrics};
pub use per::Per;
pub use row_source::RowSource;
pub use transform::{Column, ColumnKind, ColumnSpec, Elements};
pub use transport::{
    Address, AddressError, Answers, CallError, Client, ClientOptions, Incoming, Listener, Replier, Reserved,
    Serving, serve,
};
pub use worker::{Bundle, Worker, WorkerOptions};
