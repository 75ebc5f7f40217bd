//! The Connect command of fabrics.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Command, Nqn, fabrics};

/// The fields of a Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Format of the record: 0.
    pub format: u16,
    /// The queue to make: 0 is the admin queue.
    pub queue: u16,
    /// Entries of the submission queue, less one.
    pub queue_size: u16,
    /// The host does without flow control of the submission queue.
    pub is_flow_control_off: bool,
    /// The host sends a Keep Alive at least this often; 0 is never.
    pub keep_alive_ms: u32,
}

const FLOW_CONTROL_OFF: u32 = 1 << 2;

impl Connect {
    /// The fields of a command.
    pub fn from_command(command: &Command) -> Connect {
        let (low, high) = (command.dword(10), command.dword(11));
        Connect {
            format: low as u16,
            queue: (low >> 16) as u16,
            queue_size: high as u16,
            is_flow_control_off: high >> 16 & FLOW_CONTROL_OFF != 0,
            keep_alive_ms: command.dword(12),
        }
    }

    /// The command with these fields.
    pub fn to_command(self) -> Command {
        let attributes = if self.is_flow_control_off { FLOW_CONTROL_OFF } else { 0 };
        Command::fabrics(fabrics::CONNECT)
            .with(10, u32::from(self.format) | u32::from(self.queue) << 16)
            .with(11, u32::from(self.queue_size) | attributes << 16)
            .with(12, self.keep_alive_ms)
    }
}

/// The data of a Connect command.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// The host, by a UUID.
    pub host_id: [u8; 16],
    /// The controller of an I/O queue; all ones for a new one.
    pub controller: U16,
    reserved_18: [u8; 238],
    /// Name of the subsystem.
    pub subsystem: [u8; 256],
    /// Name of the host.
    pub host: [u8; 256],
    reserved_768: [u8; 256],
}

impl ConnectData {
    /// Data of a Connect command.
    pub fn new(host_id: [u8; 16], controller: u16, subsystem: &Nqn, host: &Nqn) -> ConnectData {
        ConnectData {
            host_id,
            controller: controller.into(),
            subsystem: subsystem.to_field(),
            host: host.to_field(),
            ..ConnectData::new_zeroed()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        assert_eq!(size_of::<ConnectData>(), 1024);
        assert_eq!(offset_of!(ConnectData, controller), 16);
        assert_eq!(offset_of!(ConnectData, subsystem), 256);
        assert_eq!(offset_of!(ConnectData, host), 512);
        let connect = Connect {
            format: 0x0102,
            queue: 0x0304,
            queue_size: 0x0506,
            is_flow_control_off: true,
            keep_alive_ms: 0x0708_090a,
        };
        let command = connect.to_command();
        assert_eq!(command.as_bytes()[40..52], [2, 1, 4, 3, 6, 5, 4, 0, 0x0a, 9, 8, 7]);
        assert_eq!((command.opcode, command.fabrics_kind()), (0x7f, Some(1)));
        assert_eq!(Connect::from_command(&command), connect);
    }
}
