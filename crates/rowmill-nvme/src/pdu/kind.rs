//! Kinds of PDUs, and the side that sends each.

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connected and sends commands.
    Host,
    /// The end that listened and executes commands.
    Controller,
}

/// Kind of a PDU, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// ICReq: the first PDU of a host.
    InitializeRequest = 0,
    /// ICResp: the first PDU of a controller.
    InitializeResponse = 1,
    /// H2CTermReq: the host terminates the connection.
    HostTerminate = 2,
    /// C2HTermReq: the controller terminates the connection.
    ControllerTerminate = 3,
    /// CapsuleCmd: a command, possibly with its data.
    Command = 4,
    /// CapsuleResp: the completion of a command.
    Response = 5,
    /// H2CData: data of a command, requested by the controller.
    HostData = 6,
    /// C2HData: data that a command reads.
    ControllerData = 7,
    /// R2T: the controller is ready for data of a command.
    ReadyToTransfer = 9,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::InitializeRequest,
        Kind::InitializeResponse,
        Kind::HostTerminate,
        Kind::ControllerTerminate,
        Kind::Command,
        Kind::Response,
        Kind::HostData,
        Kind::ControllerData,
        Kind::ReadyToTransfer,
    ];

    pub(super) fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|&kind| kind as u8 == byte)
    }

    /// Bytes of the header, without its digest.
    pub fn header_bytes(self) -> usize {
        match self {
            Kind::InitializeRequest | Kind::InitializeResponse => 128,
            Kind::Command => 72,
            _ => 24,
        }
    }

    /// The side that sends this kind.
    pub fn sender(self) -> Side {
        match self {
            Kind::InitializeRequest | Kind::HostTerminate | Kind::Command | Kind::HostData => Side::Host,
            _ => Side::Controller,
        }
    }

    pub(super) fn is_initialize(self) -> bool {
        matches!(self, Kind::InitializeRequest | Kind::InitializeResponse)
    }

    pub(super) fn is_terminate(self) -> bool {
        matches!(self, Kind::HostTerminate | Kind::ControllerTerminate)
    }

    pub(super) fn may_have_data(self) -> bool {
        self.is_terminate() || matches!(self, Kind::Command | Kind::HostData | Kind::ControllerData)
    }

    /// Initialization and termination are sent without digests.
    pub(super) fn may_have_digests(self) -> bool {
        !self.is_initialize() && !self.is_terminate()
    }
}
