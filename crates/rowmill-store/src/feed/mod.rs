//! The live feed: publishes changed rows to other processes while training continues.
//!
//! The training process appends frames to segment files in the store's volume; followers only read them.
//! Every frame has a checksum and a sequence number that is never reused. Each row is copied at one instant,
//! under the lock of its shard. Rows of one step may be in different frames.
//!
//! Invariants:
//! * A follower that has applied every frame up to the frame of checkpoint `e` has exactly the rows of
//!   checkpoint `e`.
//! * Frames form chains: each segment names the sequence number that it follows. Frames after that number in
//!   the previous segment are ignored: a crash left them.
//! * A store opened at a checkpoint undoes changes that were published later. It publishes a rollback, the
//!   rows as of the checkpoint, and the checkpoint again. If that is impossible, it starts a new chain that
//!   follows no frame, and followers get [`StoreError::FeedGap`](crate::StoreError) and must start again.
//! * There are at most [`SEGMENTS_MAX`] segments; the oldest ones are removed.
//! * Unpublished rows that have left memory use at most [`FeedOptions::waiting`] bytes. Beyond that, or when
//!   a segment cannot be written, nothing more is collected. The next checkpoint starts a new chain, from
//!   which followers must start again.
//!
//! The feed is never synced: it serves processes on the same running machine. After a power failure its end
//! may be missing, which followers and the store detect.

mod frame;
#[cfg(test)]
mod golden;
mod publisher;
mod reader;
mod resume;
mod runs;
mod segment;
mod writer;

pub use frame::{FeedChange, FeedEvent};
pub(crate) use publisher::{Feed, FeedCut, start};
pub use reader::FeedReader;
pub(crate) use resume::open;
pub(crate) use segment::remove_all;

use crate::options::FeedOptions;

/// Maximum number of segments kept.
const SEGMENTS_MAX: u64 = 64;
/// Bytes of a segment.
fn segment_bytes(options: &FeedOptions) -> u64 {
    options.bytes / SEGMENTS_MAX
}
