//! The first 64 bytes of a message.

use rowmill_io::crc32c;

use super::table::ENTRY_BYTES_MAX;
use super::{ALIGNMENT, Limits, MessageError, SMALL_BYTES, Status};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// Version of messages that this build reads and writes.
pub const VERSION: u16 = 2;
/// `RWSM` in the order of the bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"RWSM");

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The first message of either end of a connection.
    Hello = 1,
    /// Tensors for the program.
    Request = 2,
    /// Tensors from the program.
    Reply = 3,
    /// A request failed; its one tensor is the reason as text.
    Failure = 4,
    /// What a message has lent or reserved is free again.
    Release = 5,
    /// A request will come, if the receiver admits it.
    Reserve = 6,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        use Kind::{Failure, Hello, Release, Reply, Request, Reserve};
        [Hello, Request, Reply, Failure, Release, Reserve].into_iter().find(|&kind| kind as u8 == number)
    }

    fn has_tensors(self) -> bool {
        !matches!(self, Self::Hello | Self::Release)
    }

    /// Whether its sender waits for an answer.
    pub(super) fn asks(self) -> bool {
        matches!(self, Self::Request | Self::Reserve)
    }
}

/// What a header says. The meaning of most fields is that of [`super::Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "docs/reference/serving-messages.md gives every field")]
pub struct Header {
    pub kind: Kind,
    pub id: u64,
    pub trace: [u8; 16],
    pub program: u64,
    pub time_left_us: u32,
    pub status: Status,
    pub tensors: u16,
    pub table_bytes: u32,
    pub inline_bytes: u32,
    pub table_crc: u32,
}

impl Header {
    /// The bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC.to_le_bytes());
        put(4, &VERSION.to_le_bytes());
        put(6, &[self.kind as u8, 0]);
        put(8, &self.id.to_le_bytes());
        put(16, &self.trace);
        put(32, &self.program.to_le_bytes());
        put(40, &self.time_left_us.to_le_bytes());
        put(44, &(self.status as u16).to_le_bytes());
        put(46, &self.tensors.to_le_bytes());
        put(48, &self.table_bytes.to_le_bytes());
        put(52, &self.inline_bytes.to_le_bytes());
        put(56, &self.table_crc.to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Read and check a header. What it says of sizes is within `limits` afterwards.
    ///
    /// # Errors
    /// When the bytes are no header, damaged, or beyond the limits.
    pub fn decode(bytes: &[u8; HEADER_BYTES], limits: &Limits) -> Result<Self, MessageError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        // Magic and version come before the checksum: another version may have its checksum elsewhere.
        if u32_at(0) != MAGIC {
            return Err(MessageError::Magic { found: u32_at(0) });
        }
        if u16_at(4) != VERSION {
            return Err(MessageError::Version { found: u16_at(4) });
        }
        let (found, expected) = (crc32c(&bytes[..60]), u32_at(60));
        if found != expected {
            return Err(MessageError::Checksum { part: "the header".into(), found, expected });
        }
        let wrong = |field, found, expected| Err(MessageError::Header { field, found, expected });
        let Some(kind) = Kind::of(bytes[6]) else {
            return wrong("kind", bytes[6].into(), "1 to 6");
        };
        if bytes[7] != 0 {
            return wrong("byte 7", bytes[7].into(), "0");
        }
        let status = match Status::of(u16_at(44)) {
            Some(status) if (status == Status::Ok) == (kind != Kind::Failure) => status,
            _ => return wrong("status", u16_at(44).into(), "1 to 6 in a failure, 0 elsewhere"),
        };
        let mut trace = [0; 16];
        trace.copy_from_slice(&bytes[16..32]);
        let header = Self {
            kind,
            id: u64_at(8),
            trace,
            program: u64_at(32),
            time_left_us: u32_at(40),
            status,
            tensors: u16_at(46),
            table_bytes: u32_at(48),
            inline_bytes: u32_at(52),
            table_crc: u32_at(56),
        };
        header.check_sizes(limits).map(|()| header)
    }

    fn check_sizes(&self, limits: &Limits) -> Result<(), MessageError> {
        let wrong =
            |field, found: u32, expected| Err(MessageError::Header { field, found: found.into(), expected });
        if !self.kind.has_tensors() && (self.tensors, self.table_bytes, self.inline_bytes) != (0, 0, 0) {
            return wrong("tensors", self.tensors.into(), "0 in this kind of message");
        }
        if !self.kind.asks() && self.time_left_us != 0 {
            return wrong("time left", self.time_left_us, "0 but in requests and reservations");
        }
        if self.tensors > limits.tensors_max {
            return Err(MessageError::TooManyTensors { tensors: self.tensors, limit: limits.tensors_max });
        }
        let tensors = usize::from(self.tensors);
        let fits = |bytes: u32, max: usize| {
            (bytes as usize).is_multiple_of(ALIGNMENT) && bytes as usize <= max.next_multiple_of(ALIGNMENT)
        };
        if !fits(self.table_bytes, tensors * ENTRY_BYTES_MAX) {
            return wrong("table bytes", self.table_bytes, "a multiple of 64 that the tensors can fill");
        }
        if !fits(self.inline_bytes, tensors * SMALL_BYTES) {
            return wrong("inline bytes", self.inline_bytes, "a multiple of 64 that the tensors can fill");
        }
        Ok(())
    }
}
