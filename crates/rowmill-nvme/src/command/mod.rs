//! Commands, completions and statuses of NVMe, and the fields of commands that fabrics add.

mod command;
mod completion;
mod connect;
mod nqn;
mod opcode;
mod property;
mod sgl;
mod status;

pub use command::Command;
pub(crate) use command::Direction;
pub use completion::Completion;
pub use connect::{Connect, ConnectData};
pub use nqn::{DISCOVERY_NQN, Nqn, NqnError};
pub use opcode::{admin, fabrics, io};
pub use property::{Property, capability, configuration, controller_status};
pub use sgl::{DataPlace, Sgl};
pub use status::Status;
