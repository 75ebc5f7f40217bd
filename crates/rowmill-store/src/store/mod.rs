//! The public API: the store and its tables.
//!
//! A store holds groups, tables by name, tickets, and one memory budget. Its calls check their arguments,
//! take the locks they need, and pass the work to a group. Gets that must wait for a clock can wait in a
//! queue.

mod gather_stats;
mod index_room;
mod log_device;
mod pooled;
mod request_queue;
mod saved;
mod store;
mod table;

pub(crate) use index_room::NewIndex;
pub(crate) use log_device::{log_device, log_name};
pub use pooled::AskedRows;
pub use request_queue::QueuedGet;
pub use saved::CheckpointInfo;
pub(crate) use saved::{KeptVersion, Saved, Written};
pub use store::Store;
pub(crate) use store::check_spec;
pub use table::Table;
