//! Lookahead: prefetching the rows of coming steps.
//!
//! Announced ids wait in a queue until a thread loads their rows from the log into memory.

mod lookahead;

pub use lookahead::Destination;
pub(crate) use lookahead::{Announcement, Lookahead, THREADS};
