//! The error log page.

use std::collections::VecDeque;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::{Completion, Status};
use crate::identify::ERRORS_MAX;

/// One entry of the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// The number of the error, from 1.
    pub count: U64,
    /// The queue of the command.
    pub queue: U16,
    /// The command.
    pub cid: U16,
    /// Its status, as in a completion.
    pub status: U16,
    reserved_14: [u8; 2],
    /// The first block with the error.
    pub block: U64,
    /// The namespace.
    pub namespace: U32,
    reserved_28: [u8; 4],
    /// Of a namespace of rows: the table with the error, plus one.
    pub table: U64,
    reserved_40: [u8; 24],
}

/// The newest errors of a controller, at most 64.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

/// Where an error was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorPlace {
    /// The namespace.
    pub namespace: u32,
    /// The first block with the error.
    pub block: u64,
    /// The table with the error, in a namespace of rows.
    pub table: Option<u32>,
}

impl ErrorLog {
    /// Remember an error of a command. The oldest one makes room.
    pub(crate) fn record(&mut self, queue: u16, cid: u16, status: Status, place: ErrorPlace) {
        self.count += 1;
        self.entries.truncate(ERRORS_MAX - 1);
        self.entries.push_front(ErrorEntry {
            count: self.count.into(),
            queue: queue.into(),
            cid: cid.into(),
            status: Completion::status_field(status, false),
            block: place.block.into(),
            namespace: place.namespace.into(),
            table: place.table.map_or(0, |table| u64::from(table) + 1).into(),
            ..ErrorEntry::new_zeroed()
        });
    }

    /// The log page.
    pub(crate) fn page(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.entries.iter().flat_map(IntoBytes::as_bytes).copied().collect();
        bytes.resize(ERRORS_MAX * size_of::<ErrorEntry>(), 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        assert_eq!(size_of::<ErrorEntry>(), 64);
        assert_eq!(offset_of!(ErrorEntry, status), 12);
        assert_eq!(offset_of!(ErrorEntry, block), 16);
        assert_eq!(offset_of!(ErrorEntry, namespace), 24);
        assert_eq!(offset_of!(ErrorEntry, table), 32);
    }

    #[test]
    fn the_newest_errors_stay() {
        let mut log = ErrorLog::default();
        for cid in 0..100 {
            let place = ErrorPlace { namespace: 2, block: 5, table: Some(3) };
            log.record(1, cid, Status::UNRECOVERED_READ_ERROR, place);
        }
        let page = log.page();
        assert_eq!(page.len(), 4096);
        let first = ErrorEntry::read_from_bytes(&page[..64]).unwrap();
        assert_eq!((first.count.get(), first.cid.get(), first.table.get()), (100, 99, 4));
        let last = ErrorEntry::read_from_bytes(&page[4032..]).unwrap();
        assert_eq!(last.count.get(), 37);
    }
}
