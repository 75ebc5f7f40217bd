//! Log pages.

mod commands;
mod discovery;
mod errors;
mod health;
mod tables;

pub use commands::SupportedCommands;
pub(crate) use discovery::discovery_page;
pub use discovery::{DiscoveryEntry, DiscoveryHeader, Endpoint};
pub(crate) use errors::ErrorLog;
pub use errors::{ErrorEntry, ErrorPlace};
pub use health::Health;
pub use tables::{TableEntry, TableIndex, TablesHeader, encode_tables, parse_tables, tables_bytes};

/// Identifiers of log pages.
pub mod page {
    /// Which log pages exist.
    pub const SUPPORTED: u8 = 0x00;
    /// Errors, the newest first.
    pub const ERRORS: u8 = 0x01;
    /// SMART and health.
    pub const HEALTH: u8 = 0x02;
    /// The one firmware slot.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that changed since the page was last read.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Which commands exist.
    pub const COMMANDS: u8 = 0x05;
    /// Subsystems of a port.
    pub const DISCOVERY: u8 = 0x70;
    /// Tables of a namespace of rows, and where dense ones are in its blocks.
    pub const TABLES: u8 = 0xc0;
}

/// Most namespaces in the log of changed ones. If more have changed, the log has one entry of all ones.
pub(crate) const CHANGED_MAX: usize = 1024;
