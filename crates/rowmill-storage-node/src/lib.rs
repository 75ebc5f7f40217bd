//! A storage node: namespaces on disks, which hosts reach over NVMe/TCP.
//!
//! [`fill`] and [`Follower`] are the side of the trainer: they write rows to a node.
//!
//! [`Node`] serves subsystems, each with one namespace in a folder. [`Process`] is a node with its settings file, metrics
//! and end. The protocol is that of `rowmill-nvme`; here are sockets, threads and disks.
//!
//! Invariants:
//!
//! - The thread that waits for sockets never waits for a disk.
//! - Memory is bounded over all connections: for data of commands, for answers, for staged results.
//! - A write is answered when the disk has it, and is durable after a flush, or if the host asks for it.
//! - Beyond loopback, every host proves a key.
#![forbid(unsafe_code)]

mod blocks;
mod counters;
mod error;
mod export;
mod fault;
mod identity;
mod metrics;
mod node;
mod process;
mod rows;
mod sender;
mod session;
mod settings;
mod size;
mod wire_memory;

pub use blocks::{BLOCK_SHIFT, Blocks};
pub use error::NodeError;
pub use export::{Export, ExportContent};
pub use identity::{Identity, IdentityError};
pub use node::{NAMESPACE, Node};
pub use process::{Process, ProcessError};
pub use rows::{FilledOptions, RowsLimits};
pub use sender::{FillReport, Followed, Follower, SendError, fill, status};
pub use settings::{HostSettings, NodeSettings, RoleSetting, SetupError, SubsystemSettings};
pub use size::Size;

/// Bytes of a block.
const BLOCK_BYTES: u64 = 1 << BLOCK_SHIFT;
