//! Work beside calls: writing segments, cleaning the log, sharing memory between groups, lookahead.
//!
//! Threads of the store do it, or its caller, turn by turn, where runs must repeat.

mod compaction;
mod turn;
pub(crate) use compaction::start as start_compaction;
pub use turn::Work;
