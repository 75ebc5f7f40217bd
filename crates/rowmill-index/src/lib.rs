//! The index of a table: one per (shard, table), from an id to the [`Location`] of its row.
//!
//! Besides the location, an entry has six bits: two count recent accesses (for the cache policy), four are
//! the staleness clock, which counts outstanding gets. They are in the cache line that a lookup reads anyway.
//!
//! Invariants:
//! * The full 64-bit id is stored, or implied by the position. Two ids never share an entry.
//! * All-zero memory is an empty index, so a new index takes memory only for the pages that are touched.
//! * Functions with `&self` may run under a shared lock. Functions that change entries, locations or clocks
//!   take `&mut self`.
//!
//! An index is independent of rows, devices and memory budgets. It reports its bytes, and the bytes that a
//! growth would add before it happens ([`TableIndex::grow_bytes_if_inserting`]).

// A function that is not inlined into a function compiled for an instruction set loses that instruction set.
// A prefetch behind a function call comes too late.
#![allow(clippy::inline_always)]

mod compare;
mod direct_index;
mod flags;
mod hash_index;
mod location;
mod mmap_array;
mod prefetch;
mod segment;
mod shard;
mod table_index;

#[cfg(target_arch = "x86_64")]
pub use compare::Avx512;
pub use compare::{Compare, Plain};
pub use direct_index::DirectIndex;
pub use flags::CLOCK_OVERFLOW;
pub use hash_index::HashIndex;
pub use location::{EntryRef, Found, Location};
pub use mmap_array::{MmapArray, Zeroed};
pub use prefetch::{prefetch, prefetch_bytes};
pub use shard::{dense_shard_of, hash, shard_and_hash_of, shard_of};
pub use table_index::{Beyond, TableIndex};

#[cfg(test)]
mod tests;
