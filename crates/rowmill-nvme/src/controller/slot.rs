//! A command on a connection, from its capsule to its answer.

use super::connection::Request;
use crate::command::{Command, DataPlace, Direction, Status};
use crate::{CAPSULE_DATA_BYTES, TRANSFER_BYTES_MAX};

/// How far the data of a command has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Data comes in the capsule.
    InCapsule,
    /// The host may not send data yet.
    WaitsForRoom,
    /// The host may send data under this tag.
    Granted { tag: u16 },
    /// All data has come. The command waits for others before it.
    Complete,
    /// The command is with the node.
    Executing,
}

/// A command between its capsule and its answer.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) command: Command,
    pub(super) progress: Progress,
    pub(super) data: Vec<u8>,
    /// Bytes of data from the host.
    pub(super) data_bytes: usize,
    /// Bytes of data that the host takes back.
    pub(super) answer_bytes: usize,
    /// A digest of the data was wrong.
    pub(super) is_damaged: bool,
    /// Bytes that count against the connection's limit.
    pub(super) held_bytes: usize,
    /// Bytes of data that came in the capsule.
    pub(super) capsule_bytes: usize,
}

impl Slot {
    /// A command whose capsule has this much data after it. A status, if the data does not suit the command.
    pub(super) fn new(command: Command, capsule_bytes: usize) -> Result<Slot, Status> {
        if !command.has_valid_flags() {
            return Err(Status::INVALID_FIELD);
        }
        let bytes = command.sgl.bytes.get() as usize;
        let mut slot = Slot {
            command,
            progress: Progress::Executing,
            data: Vec::new(),
            data_bytes: 0,
            answer_bytes: 0,
            is_damaged: false,
            held_bytes: 0,
            capsule_bytes: 0,
        };
        let direction = command.direction();
        if direction == Direction::Both {
            return Err(Status::INVALID_OPCODE);
        }
        let place = if direction == Direction::None { DataPlace::Transfer } else { command.sgl.place()? };
        if (place == DataPlace::Transfer && capsule_bytes > 0)
            || (place == DataPlace::Capsule && capsule_bytes != bytes)
        {
            return Err(Status::DATA_LENGTH_INVALID);
        }
        if direction == Direction::None {
            return Ok(slot);
        }
        if bytes > TRANSFER_BYTES_MAX {
            return Err(Status::INVALID_FIELD);
        }
        match (direction, place) {
            (Direction::ToHost, DataPlace::Transfer) => slot.answer_bytes = bytes,
            (Direction::ToHost, DataPlace::Capsule) => return Err(Status::SGL_TYPE_INVALID),
            (_, DataPlace::Capsule) if bytes > 0 => {
                debug_assert!(bytes <= CAPSULE_DATA_BYTES);
                slot.progress = Progress::InCapsule;
                slot.expect(bytes);
            }
            (_, DataPlace::Transfer) if bytes > 0 => {
                slot.progress = Progress::WaitsForRoom;
                slot.data_bytes = bytes;
            }
            _ => (),
        }
        Ok(slot)
    }

    fn expect(&mut self, bytes: usize) {
        self.data_bytes = bytes;
        self.data.reserve_exact(bytes);
    }

    /// The host may send the data.
    pub(super) fn grant(&mut self, tag: u16) {
        self.progress = Progress::Granted { tag };
        self.held_bytes = self.data_bytes;
        self.expect(self.data_bytes);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.data.len() == self.data_bytes
    }

    /// The command with its data, for the node.
    pub(super) fn request(&mut self) -> Request {
        self.progress = Progress::Executing;
        Request {
            command: self.command,
            data: std::mem::take(&mut self.data),
            answer_bytes: self.answer_bytes,
        }
    }
}
