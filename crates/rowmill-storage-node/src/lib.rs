//! A storage node: namespaces on disks, which hosts reach over NVMe/TCP.
//!
//! [`Node`] serves one namespace of blocks from a folder. The protocol is that of `rowmill-nvme`; here are sockets, threads
//! and disks.
//!
//! Invariants:
//!
//! - The thread that waits for sockets never waits for a disk.
//! - Memory is bounded: per connection by the limits of its state machine, and over all connections for answers.
//! - A write is answered when the disk has it, and is durable after a flush, or if the host asks for it.
#![forbid(unsafe_code)]

mod blocks;
mod counters;
mod identity;
mod node;
mod session;

pub use blocks::{BLOCK_SHIFT, Blocks};
pub use identity::{Identity, IdentityError};
pub use node::{NAMESPACE, Node, NodeSettings};
