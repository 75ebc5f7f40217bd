//! Data of Identify commands. Fields that this crate leaves at 0 are not named.

mod controller;
mod lists;
mod namespace;

pub use controller::IdentifyController;
pub(crate) use controller::{
    ASYNC_EVENTS_MAX, ERRORS_MAX, EVENT_DISCOVERY, EVENT_NAMESPACE, KIND_DISCOVERY, KIND_IO, VERSION,
    fill_text,
};
pub(crate) use lists::{active_namespaces, namespace_descriptors};
pub use namespace::IdentifyNamespace;

/// Bytes of the data of every Identify command.
pub const IDENTIFY_BYTES: usize = 4096;

/// CNS values: which data an Identify command asks for.
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Numbers of active namespaces.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Descriptors of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
    /// The controller, for one command set.
    pub const CONTROLLER_OF_COMMAND_SET: u8 = 0x06;
}
