//! Serving a model in two halves: what the processes send each other, and in which order requests run.

mod arena;
mod batching;
mod front_door;
mod messages;
mod transport;

pub use arena::{Arena, ArenaError, Buffer, Lease};
pub use batching::{Batch, BatchLimits, Batcher, Dispatcher, Job, Next, Refusal, Refused, ServiceTime};
pub use front_door::{Answer, Ask, FrontDoor, Model, TensorSpec};
pub use messages::{
    DType, HEADER_BYTES, Header, Intake, Kind, Limits, Message, MessageError, Received, SMALL_BYTES,
    SpoiledCause, Status, StreamError, Tensor, TensorName, VERSION, encode, read,
};
pub use transport::{
    Address, AddressError, CallError, Client, ClientOptions, Incoming, Listener, Replier, Serving, serve,
};
