//! The public calls of the store, one file for each part of its contract.
//!
//! One program, because linking takes longer than most of these tests. Tests that measure or end their own process,
//! or have a long form, are programs of their own beside this folder.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod basics;
mod bf16;
mod bounds;
mod changes;
mod damage;
mod evicted_changes;
mod eviction;
mod failures;
mod feed;
mod feed_limits;
mod fsck;
mod lookahead;
mod pin;
mod prepared;
mod queue;
mod rows_in_turn;
mod space;
mod split_bf16;
mod staleness;
