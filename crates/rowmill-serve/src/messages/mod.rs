//! Messages between the halves of a served model: one message per request or reply.
//!
//! A message is a header of 64 bytes, a table of its tensors, the payloads of small tensors, and the payloads of
//! large ones. The first three are written together; large payloads follow on the connection or lie in memory that
//! the peers share. Every part that is sent has a CRC32C. docs/reference/serving-messages.md gives every byte.
//!
//! Nothing here opens a socket: [`read`] takes any stream of bytes. What it allocates is bounded by [`Limits`] before
//! it trusts a length, and no bytes make it panic.

mod error;
mod header;
mod limits;
mod read;
mod status;
mod table;
mod tensor;
mod write;

use std::time::Duration;

pub use error::MessageError;
pub use header::{HEADER_BYTES, Header, Kind, VERSION};
pub use limits::Limits;
pub use read::{Intake, Received, SpoiledCause, StreamError, read};
pub(crate) use read::{PeerMemory, read_after, read_header};
pub use status::Status;
pub(crate) use tensor::bytes_of;
pub use tensor::{DType, Tensor, TensorName};
pub(crate) use write::Outgoing;
pub use write::encode;

/// Tensors up to this size travel in the first write of a message, larger ones apart. Prism (section 4.1) sends
/// tensors up to 4 KiB with the request and writes larger ones into the receiver's memory.
pub const SMALL_BYTES: usize = 4096;

/// Alignment of small tensors within a message, so that vector loads of any width find them aligned.
const ALIGNMENT: usize = 64;

/// What one end of a connection sends to the other.
#[derive(Clone, Debug)]
pub struct Message {
    /// Request, reply or failure, and the parts of the protocol that carry no tensors.
    pub kind: Kind,
    /// Number of the request on its connection; a reply or failure carries the number of its request.
    pub id: u64,
    /// Trace id as in W3C Trace Context, zeros where there is none.
    pub trace: [u8; 16],
    /// The program that the tensors are for: both halves of a model carry the same number.
    pub program: u64,
    /// How long the sender of a request or reservation still waits for its reply; zero in other messages.
    pub time_left: Duration,
    /// Why a request failed; [`Status::Ok`] in other messages.
    pub status: Status,
    /// The tensors, in the order of the table.
    pub tensors: Vec<Tensor>,
}

impl Message {
    /// A message without tensors.
    pub(crate) fn bare(kind: Kind, id: u64) -> Self {
        Self {
            kind,
            id,
            trace: [0; 16],
            program: 0,
            time_left: Duration::ZERO,
            status: Status::Ok,
            tensors: Vec::new(),
        }
    }
}
