//! A host of storage nodes: it reaches namespaces over NVMe/TCP.
//!
//! - [`Client`] is one controller: it connects, authenticates, keeps alive, reconnects, and passes commands of many threads.
//! - [`Rows`] is a namespace of rows: its tables, pooled vectors, fills and frames of the feed.
//! - [`NamespaceDevice`] is a namespace of blocks as a device of `rowmill-io`.
//! - [`SlicedVolume`] is a volume on such a device, and so a place for a store.
//!
//! The protocol is that of `rowmill-nvme`; here are sockets and one thread per client, which waits for them. Callers block.
//!
//! Invariants:
//!
//! - Every command ends by its deadline, with an answer or an error that names the URL.
//! - After a connection is lost, only commands that may run twice are sent again. Writes and flushes never are.
//! - Commands in flight are bounded per queue; a caller beyond the bound waits, at most until its deadline.
#![forbid(unsafe_code)]
#![allow(clippy::doc_markdown, reason = "the standard's names, such as NVMe, are no items of code")]

mod client;
mod error;
mod lane;
mod namespace_device;
mod rows;
mod session;
mod settings;
mod slice_table;
mod sliced_device;
mod sliced_volume;
mod slices;
mod staging;
mod ticket;
mod url;
mod wire;

pub use client::Client;
pub use error::{ConnectError, HostError};
pub use namespace_device::NamespaceDevice;
pub use rowmill_nvme::TableIndex;
pub use rows::{Number, Rows, Tables};
pub use settings::HostSettings;
pub use sliced_volume::SlicedVolume;
pub use ticket::{Completed, Pending, Request};
pub use url::NvmeUrl;
