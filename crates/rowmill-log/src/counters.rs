//! Counters of a log, from 0 at open.

use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot of the counters. Each counter is read separately, so they may not agree with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Blocks read from the device, trailers included.
    pub blocks_read: u64,
    /// Bytes written to the device, trailers included.
    pub bytes_written: u64,
    /// Segments written.
    pub segments_written: u64,
    /// Rows appended.
    pub(crate) rows_appended: u64,
    /// Rows read from the device.
    pub(crate) rows_read: u64,
    /// Rows read from the tail buffers, without the device.
    pub(crate) tail_hits: u64,
    /// Blocks and trailers whose content failed its check.
    pub corrupt: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) blocks_read: AtomicU64,
    pub(super) bytes_written: AtomicU64,
    pub(super) segments_written: AtomicU64,
    pub(super) rows_appended: AtomicU64,
    pub(super) rows_read: AtomicU64,
    pub(super) tail_hits: AtomicU64,
    pub(super) corrupt: AtomicU64,
}

impl Counters {
    pub(super) fn counts(&self) -> LogCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogCounts {
            blocks_read: of(&self.blocks_read),
            bytes_written: of(&self.bytes_written),
            segments_written: of(&self.segments_written),
            rows_appended: of(&self.rows_appended),
            rows_read: of(&self.rows_read),
            tail_hits: of(&self.tail_hits),
            corrupt: of(&self.corrupt),
        }
    }
}

/// Add to one counter.
pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
