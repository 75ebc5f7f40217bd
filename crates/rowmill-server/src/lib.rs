//! What every process that listens shares: a runtime, listeners, an orderly end, one HTTP port, logs and settings.
//!
//! A command makes a [`Server`] when it starts to listen. Importing rowmill starts no thread, and a process that
//! wants to fork does so before it makes one: threads of a runtime do not survive a fork. Nothing here knows what
//! the process serves.
#![forbid(unsafe_code)]

mod drain;
mod http;
mod listener;
mod log;
mod server;
mod settings;

pub use drain::{Drain, Hold, StillOpen};
pub use http::router;
pub use listener::{Exposure, ListenError, bind_tcp, bind_unix};
pub use log::{LogError, json_lines, start_logs};
pub use server::{Server, ServerError};
pub use settings::{SettingsError, read_settings};
