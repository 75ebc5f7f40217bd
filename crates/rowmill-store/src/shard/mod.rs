//! Shards: one part of a group's rows, with slots in memory, indexes and clocks.
//!
//! A shard has slots for rows, an index per table, clocks, and the order in which rows leave memory
//! (S3-FIFO). It marks rows that a checkpoint must save and rows that coming steps have announced. `Core` is
//! the state that all shards of a group share.

mod clocks;
mod coming;
mod core;
mod due;
mod emptying;
mod feed_backlog;
mod frozen;
mod leaving;
mod restore;
mod s3fifo;
mod shard;
mod slot_bits;
mod unpublished;

pub(crate) use clocks::Clock;
pub(crate) use core::Core;
pub(crate) use due::STEPS_MAX;
pub(crate) use feed_backlog::FeedBacklog;
pub(crate) use restore::IndexSize;
pub(crate) use shard::{Miss, Reason, SLOTS_MIN, Shard, SlotsInPlace};
