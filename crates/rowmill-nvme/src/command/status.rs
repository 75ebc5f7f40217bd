//! Statuses of commands.

use std::fmt;

/// The status of a command: its type (generic, command specific, media, vendor specific), its code in that type, and
/// whether the same command would fail again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status {
    kind: u8,
    code: u8,
    is_final: bool,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = ($kind:literal, $code:literal, $is_final:literal, $text:literal);)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status { kind: $kind, code: $code, is_final: $is_final };)*

            /// Every status that this crate, or an executor of its commands, gives.
            pub const ALL: &'static [Status] = &[$(Status::$name),*];

            fn text(self) -> Option<&'static str> {
                match (self.kind, self.code) {
                    $(($kind, $code) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The command succeeded.
    SUCCESS = (0, 0x00, false, "success");
    /// No command has this opcode.
    INVALID_OPCODE = (0, 0x01, true, "invalid opcode");
    /// A field has an invalid value.
    INVALID_FIELD = (0, 0x02, true, "invalid field");
    /// A running command of the queue has the same identifier.
    CID_CONFLICT = (0, 0x03, false, "command identifier in use");
    /// An error inside of the controller.
    INTERNAL_ERROR = (0, 0x06, false, "internal error");
    /// The command was aborted by an Abort command.
    ABORTED = (0, 0x07, false, "aborted by request");
    /// No active namespace has this number, or the command does not suit the namespace.
    INVALID_NAMESPACE = (0, 0x0b, true, "invalid namespace");
    /// The command is not allowed now.
    SEQUENCE_ERROR = (0, 0x0c, true, "command sequence error");
    /// The length of the data does not suit the command.
    DATA_LENGTH_INVALID = (0, 0x0f, true, "data length invalid");
    /// The SGL descriptor has a type that the transport does not support.
    SGL_TYPE_INVALID = (0, 0x11, true, "SGL descriptor type invalid");
    /// The SGL descriptor has an offset that the transport does not support.
    SGL_OFFSET_INVALID = (0, 0x16, true, "SGL offset invalid");
    /// The namespace is write protected.
    WRITE_PROTECTED = (0, 0x20, true, "namespace is write protected");
    /// Data was damaged on its way; the command may be sent again.
    TRANSIENT_TRANSPORT_ERROR = (0, 0x22, false, "transient transport error");
    /// Blocks beyond the end of the namespace.
    BLOCK_OUT_OF_RANGE = (0, 0x80, true, "block out of range");
    /// The disk of the storage node is full.
    CAPACITY_EXCEEDED = (0, 0x81, false, "capacity exceeded");
    /// More async event requests than the controller keeps.
    ASYNC_LIMIT_EXCEEDED = (1, 0x05, true, "async event request limit exceeded");
    /// No log page has this identifier.
    INVALID_LOG_PAGE = (1, 0x09, true, "invalid log page");
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = (1, 0x0d, true, "feature not saveable");
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = (1, 0x0e, true, "feature not changeable");
    /// Connect: unknown format of the record.
    CONNECT_INCOMPATIBLE_FORMAT = (1, 0x80, true, "connect: incompatible format");
    /// Connect: no more controllers or queues can be made now.
    CONNECT_CONTROLLER_BUSY = (1, 0x81, false, "connect: controller busy");
    /// Connect: a parameter is invalid; the result says which.
    CONNECT_INVALID_PARAMETERS = (1, 0x82, true, "connect: invalid parameters");
    /// Connect: the subsystem does not allow this host.
    CONNECT_INVALID_HOST = (1, 0x84, true, "connect: invalid host");
    /// The host must authenticate first.
    AUTHENTICATION_REQUIRED = (1, 0x91, true, "authentication required");
    /// Blocks could not be written.
    WRITE_FAULT = (2, 0x80, false, "write fault");
    /// Blocks or rows could not be read: their checksum is wrong, or the disk fails.
    UNRECOVERED_READ_ERROR = (2, 0x81, true, "unrecovered read error");
    /// The host's role does not allow the command.
    ACCESS_DENIED = (2, 0x86, true, "access denied");
    /// No staged result has this handle: it was never staged, was fetched, or is too old. Stage again.
    UNKNOWN_HANDLE = (7, 0xc0, true, "unknown handle");
    /// A staged result has this handle already.
    HANDLE_IN_USE = (7, 0xc1, true, "handle in use");
    /// Staged results of this controller take as many bytes as allowed. Fetch some, then stage again.
    OVER_QUOTA = (7, 0xc2, false, "staged results over quota");
    /// The description of what to pool is malformed.
    MALFORMED = (7, 0xc3, true, "malformed description");
    /// The namespace has no table of this number.
    UNKNOWN_TABLE = (7, 0xc4, true, "unknown table");
    /// The tables of one command belong to different groups.
    MIXED_GROUPS = (7, 0xc5, true, "tables of different groups");
    /// Offsets do not ascend from 0, or lie beyond the ids.
    INVALID_OFFSETS = (7, 0xc6, true, "invalid offsets");
    /// An id is beyond the range of its table.
    ID_OUT_OF_RANGE = (7, 0xc7, true, "id out of range");
    /// The frame does not follow the last one that was applied: fill again.
    FEED_GAP = (7, 0xc8, true, "gap in the feed");
    /// No fill is under way, or another one is.
    FILL_CONFLICT = (7, 0xc9, true, "fill conflict");
    /// The host looks up more rows per second than its subsystem allows.
    RATE_EXCEEDED = (7, 0xca, false, "rate exceeded");
}

impl Status {
    /// A status as a completion has it.
    pub(crate) fn from_parts(kind: u8, code: u8, is_final: bool) -> Status {
        Status { kind, code, is_final }
    }

    /// The type: 0 generic, 1 command specific, 2 media and data integrity, 3 path, 7 vendor specific.
    pub fn kind(self) -> u8 {
        self.kind
    }

    /// The code within its type.
    pub fn code(self) -> u8 {
        self.code
    }

    /// The same command would fail again.
    pub fn is_final(self) -> bool {
        self.is_final
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}/{:#04x})", self.text().unwrap_or("unknown status"), self.kind, self.code)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
