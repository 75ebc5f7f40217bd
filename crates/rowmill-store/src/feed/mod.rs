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
mod writer;

pub use frame::{FeedChange, FeedEvent};
pub(crate) use publisher::{Feed, FeedCut, start};
pub use reader::FeedReader;
pub(crate) use resume::open;
pub(crate) use segment::remove_all;

use crate::options::FeedOptions;

/// Segments kept.
const SEGMENTS_MAX: u64 = 64;
/// Bytes of a segment.
fn segment_bytes(options: &FeedOptions) -> u64 {
    options.bytes / SEGMENTS_MAX
}
