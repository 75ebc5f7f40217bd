//! The side of the storage node. A [`Connection`] turns bytes of one queue into commands and answers into bytes. A
//! [`Port`] holds subsystems and controllers, and answers commands of admin queues. [`IoCommand`] parses commands of I/O
//! queues for the node, which executes them.

mod admin;
mod answer;
mod async_events;
mod connect;
mod connection;
mod features;
mod io_command;
mod log_pages;
mod namespace;
mod port;
mod registers;
mod slot;
mod staged;
mod subsystem;

pub use answer::{Answer, Outcome, Page, PageRequest};
pub use connect::{Connected, Refusal};
pub use connection::{Closed, Connection, ConnectionEvent, ConnectionLimits, Request};
pub use io_command::{BlockRange, IoCommand};
pub use namespace::{Content, Namespace};
pub use port::{Port, PortEvent};
pub use staged::{FetchOutcome, StagedLimits, StagedResults};
pub use subsystem::{Host, Hosts, Role, Subsystem};
