//! Both sides of NVMe over TCP as state machines, without sockets and clocks: bytes and instants in, bytes and events out.
//!
//! - [`Connection`] is one queue on the side of the storage node, [`HostConnection`] on the side of a host.
//! - [`Port`] is what hosts connect to: subsystems, controllers, commands of admin queues.
//! - [`IoCommand`] parses commands of I/O queues, among them those on rows: stage, fetch and apply.
//! - [`Setup`] makes a controller ready for a host.
//!
//! Invariants:
//!
//! - Whatever bytes come, nothing panics, and memory stays within the limits of a connection.
//! - Every command gets one answer, or its connection ends.
//! - A PDU that breaks the protocol ends its connection with a termination request that gives the reason. A command that
//!   breaks a rule of NVMe gets a status.
//!
//! This crate executes no command on blocks or rows, and draws no random numbers.
#![forbid(unsafe_code)]
// A folder's main type lies in a file with the folder's name.
#![allow(clippy::module_inception)]
#![allow(clippy::doc_markdown, reason = "the standard's names, such as NVMe and ICReq, are no items of code")]

mod auth;
mod command;
mod controller;
mod host;
mod identify;
mod log;
mod pdu;
mod vendor;

pub use auth::{AuthError, AuthFailure, ControllerAuth, Hash, HostAuth, Key, KeyError};
pub use command::{
    Command, Completion, Connect, ConnectData, DISCOVERY_NQN, DataPlace, Nqn, NqnError, Property, Sgl,
    Status, admin, capability, configuration, controller_status, fabrics, io,
};
pub use controller::{
    Answer, BlockRange, Closed, Connected, Connection, ConnectionEvent, ConnectionLimits, Content,
    FetchOutcome, Host, Hosts, IoCommand, Namespace, Outcome, Page, PageRequest, Port, PortEvent, Refusal,
    Request, Role, StagedLimits, StagedResults, Subsystem,
};
pub use host::{
    Exchange, HostClosed, HostConnection, HostEvent, HostIdentity, HostLimits, Ready, Setup, SetupError,
    SetupStep, commands,
};
pub use identify::{IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, cns};
pub use log::{
    DiscoveryEntry, DiscoveryHeader, Endpoint, ErrorEntry, ErrorPlace, Health, SupportedCommands, TableEntry,
    TableIndex, TablesHeader, encode_tables, page, parse_tables, tables_bytes,
};
pub use pdu::{CommonHeader, Digests, Fatal, FatalReason, Initialize, Kind, Side, Terminate, Transfer};
pub use vendor::{
    Apply, ApplyBegin, AsOf, DAMAGED_BYTE, Feature, FeatureRequest, Fetch, FetchHeader, Form, Ids,
    IdsRequest, Pooling, RowDtype, Stage, StagedResult, TableSpec, VENDOR_VERSION, VendorArea, encode_begin,
    encode_frame, encode_stage,
};

/// Most bytes of data of one command.
pub const TRANSFER_BYTES_MAX: usize = 512 << 10;
/// Most bytes of data in a command capsule. The transport fixes this size for admin queues.
pub const CAPSULE_DATA_BYTES: usize = 8 << 10;
/// A command capsule with data.
const CAPSULE_BYTES: usize = 64 + CAPSULE_DATA_BYTES;
