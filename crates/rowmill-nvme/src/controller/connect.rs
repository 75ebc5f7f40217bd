//! Connect: checks the command of a host and creates a queue.

use std::mem::offset_of;

use zerocopy::FromBytes;

use super::{Request, Role};
use crate::auth::ControllerAuth;
use crate::command::{Connect, ConnectData, Nqn, Status};

/// A queue that a host has connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The controller.
    pub controller: u16,
    /// Its queue: 0 is the admin queue.
    pub queue: u16,
    /// Commands at a time.
    pub entries: u16,
    /// The host does without flow control.
    pub is_flow_control_off: bool,
    /// Index of the subsystem in its port; none for discovery.
    pub subsystem: Option<usize>,
    /// The rights of the host.
    pub role: Role,
    /// The authentication that must succeed before other commands; none, if the host has no key.
    pub auth: Option<ControllerAuth>,
}

/// A Connect that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub status: Status,
    /// Of invalid parameters: which one.
    pub result: u64,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal { status, result: 0 }
    }
}

impl From<Refusal> for super::Answer {
    fn from(refusal: Refusal) -> super::Answer {
        super::Answer { result: refusal.result, ..refusal.status.into() }
    }
}

/// A field of a Connect command that is invalid, by its offset.
#[derive(Clone, Copy)]
pub(super) enum Parameter {
    Queue,
    QueueSize,
    Controller,
    Subsystem,
    Host,
    HostId,
}

impl Parameter {
    pub(super) fn refusal(self) -> Refusal {
        /// The offset is one of the data, not of the command.
        const IN_DATA: usize = 1 << 16;
        let result = match self {
            Parameter::Queue => 42,
            Parameter::QueueSize => 44,
            Parameter::Controller => IN_DATA | offset_of!(ConnectData, controller),
            Parameter::Subsystem => IN_DATA | offset_of!(ConnectData, subsystem),
            Parameter::Host => IN_DATA | offset_of!(ConnectData, host),
            Parameter::HostId => IN_DATA | offset_of!(ConnectData, host_id),
        };
        Refusal { status: Status::CONNECT_INVALID_PARAMETERS, result: result as u64 }
    }
}

/// A Connect command, parsed.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) connect: Connect,
    pub(super) host_id: [u8; 16],
    pub(super) controller: u16,
    pub(super) subsystem: Nqn,
    pub(super) host: Nqn,
}

pub(super) fn parse(request: &Request) -> Result<Parsed, Refusal> {
    let connect = Connect::from_command(&request.command);
    if connect.format != 0 {
        return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.into());
    }
    let data = ConnectData::ref_from_bytes(&request.data).map_err(|_| Status::DATA_LENGTH_INVALID)?;
    if connect.queue_size == 0 {
        return Err(Parameter::QueueSize.refusal());
    }
    Ok(Parsed {
        connect,
        host_id: data.host_id,
        controller: data.controller.get(),
        subsystem: Nqn::from_field(&data.subsystem).map_err(|_| Parameter::Subsystem.refusal())?,
        host: Nqn::from_field(&data.host).map_err(|_| Parameter::Host.refusal())?,
    })
}
