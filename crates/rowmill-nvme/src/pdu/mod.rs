//! PDUs of NVMe/TCP: their fixed layouts, digests, the incremental reader and the queue of outgoing bytes. This layer
//! checks what one PDU says about itself. What a PDU means for a command is checked by the connections of both sides.

mod digests;
mod fatal;
mod kind;
mod layout;
mod outbox;
mod receiver;

pub use digests::Digests;
pub use fatal::{Fatal, FatalReason};
pub use kind::{Kind, Side};
pub use layout::{CommonHeader, Initialize, Terminate, Transfer};
pub(crate) use layout::{PDU_HEADER_BYTES_MAX, field, flag};
pub(crate) use outbox::{Outbox, Payload};
pub(crate) use receiver::{DataLimits, Pdu, Received, Receiver};
