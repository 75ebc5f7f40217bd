//! The live feed: what training changes, published for other processes while it goes on.
//!
//! The process that trains appends frames to segment files in the store's volume; followers only read them.
//! Every frame has a sequence number, never given out twice, and a checksum. The contents of rows are those
//! of one instant each (they are copied under the lock of their shard); rows of one step may come in
//! different frames.
//!
//! Invariants:
//! * who has applied every frame up to that of checkpoint `e` has exactly the rows of checkpoint `e`;
//! * frames come in chains: each segment names the sequence number it follows. Frames behind that number in
//!   the segment before do not count, whatever they hold: a crash left them;
//! * a store opened at a checkpoint takes back what was published after it: a rollback, the rows as the
//!   checkpoint has them, and the checkpoint again. Where that is not possible a new chain begins, which
//!   follows nothing, and followers are told to start again ([`StoreError::FeedGap`](crate::StoreError));
//! * there are at most [`SEGMENTS_MAX`] segments; the oldest fall away;
//! * rows that left memory and are not published yet take at most [`FeedOptions::waiting`] bytes. Where that is
//!   not enough, as where a segment cannot be written, nothing more is collected; the next checkpoint begins a new
//!   chain, and followers are told to start again from there.
//!
//! Nothing here is synced: a feed is for the processes of one running machine. After a loss of power its end
//! may be missing, which followers and the store notice.

mod frame;
#[cfg(test)]
mod golden;
mod publisher;
mod reader;
mod resume;
mod runs;
mod segment;
mod waiting;
mod writer;

use std::time::Duration;

pub use frame::{FeedChange, FeedEvent};
pub(crate) use publisher::{Feed, FeedCut, start};
pub use reader::FeedReader;
pub(crate) use segment::remove_all;
pub(crate) use waiting::Waiting;

use crate::error::StoreError;

/// Segments kept.
const SEGMENTS_MAX: u64 = 64;
/// The widest row, with its frame, fits a segment.
const BYTES_MIN: u64 = 32 << 20;
/// A few of the widest rows.
const WAITING_MIN: u64 = 1 << 20;
const INTERVAL_MAX: Duration = Duration::from_hours(1);

/// How a store publishes what it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedOptions {
    /// Bytes of the feed's files: the oldest fall away.
    pub bytes: u64,
    /// Longest time between two rounds of publishing.
    pub interval: Duration,
    /// Bytes of memory, beyond the budget, for rows that leave memory, and ids that are deleted, between two rounds.
    /// With more of them the feed pauses until the next checkpoint, from which its followers start again.
    pub waiting: u64,
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self { bytes: 256 << 20, interval: Duration::from_millis(100), waiting: 64 << 20 }
    }
}

impl FeedOptions {
    pub(crate) fn validate(&self) -> Result<(), StoreError> {
        if self.bytes < BYTES_MIN {
            return Err(StoreError::Option {
                option: "feed bytes",
                expected: format!("at least {BYTES_MIN} (32 MiB)"),
                got: self.bytes.to_string(),
            });
        }
        if self.waiting < WAITING_MIN {
            return Err(StoreError::Option {
                option: "feed waiting",
                expected: format!("at least {WAITING_MIN} (1 MiB)"),
                got: self.waiting.to_string(),
            });
        }
        if self.interval.is_zero() || self.interval > INTERVAL_MAX {
            return Err(StoreError::Option {
                option: "feed interval",
                expected: "above 0 and at most an hour".into(),
                got: format!("{:?}", self.interval),
            });
        }
        Ok(())
    }

    fn segment_bytes(&self) -> u64 {
        self.bytes / SEGMENTS_MAX
    }
}
