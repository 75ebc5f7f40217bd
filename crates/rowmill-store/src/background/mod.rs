//! Background work: writing segments, cleaning the log, balancing memory between groups, lookahead.
//!
//! Threads of the store do it, or the caller does it turn by turn, where runs must be repeatable.

mod compaction;
mod turn;
pub(crate) use compaction::start as start_compaction;
pub use turn::Work;
