//! The side of a host. A [`HostConnection`] turns commands into bytes and bytes into completions. [`Setup`] says which
//! commands make a controller ready. [`commands`] builds the commands that hosts need.

pub mod commands;
mod connection;
mod setup;

pub use connection::{Exchange, HostClosed, HostConnection, HostEvent, HostLimits};
pub use setup::{HostIdentity, Ready, Setup, SetupError, SetupStep};
