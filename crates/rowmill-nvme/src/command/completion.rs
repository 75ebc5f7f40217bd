//! Completion queue entries: the 16 bytes that answer a command.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Status;

const MORE: u16 = 1 << 14;
const DO_NOT_RETRY: u16 = 1 << 15;

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// Dwords 0 and 1: the result of the command besides its data.
    pub result: U64,
    /// How far the submission queue is consumed; all ones without flow control.
    pub queue_head: U16,
    /// The queue of the command.
    pub queue: U16,
    /// The command.
    pub cid: U16,
    /// Status in bits 1 to 11, more in bit 14, do not retry in bit 15.
    pub status: U16,
}

impl Completion {
    /// The field of a status. `has_more`: the error log has an entry about it.
    pub(crate) fn status_field(status: Status, has_more: bool) -> U16 {
        let code = u16::from(status.kind()) << 9 | u16::from(status.code()) << 1;
        let more = if has_more { MORE } else { 0 };
        let do_not_retry = if status.is_final() { DO_NOT_RETRY } else { 0 };
        (code | more | do_not_retry).into()
    }

    /// The status.
    pub fn status(&self) -> Status {
        let field = self.status.get();
        Status::from_parts((field >> 9 & 7) as u8, (field >> 1) as u8, field & DO_NOT_RETRY != 0)
    }

    /// The error log of the controller says more about the status.
    pub fn has_more(&self) -> bool {
        self.status.get() & MORE != 0
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn statuses_keep_their_bits() {
        for &status in Status::ALL {
            for has_more in [false, true] {
                let completion = Completion {
                    status: Completion::status_field(status, has_more),
                    ..Completion::new_zeroed()
                };
                assert_eq!((completion.status(), completion.has_more()), (status, has_more));
            }
        }
        assert_eq!(
            Completion::status_field(Status::CONNECT_INVALID_PARAMETERS, false).get(),
            0x8000 | 0x182 << 1
        );
    }
}
