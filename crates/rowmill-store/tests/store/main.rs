//! Tests of the store's public calls, one file per part of its contract.
//!
//! They form one program, because linking takes longer than most of these tests. Tests that measure or end
//! their process, or have a long form, are separate programs beside this folder.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod altered;
mod basics;
mod bf16;
mod bounds;
mod changes;
mod damage;
mod evaluation;
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
mod version_space;
mod versions;
