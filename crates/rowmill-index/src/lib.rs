//! Where a row is: one index per (shard, table), from an id to a [`Location`].
//!
//! Beside the location an entry keeps six bits: how often the row was asked for lately (for the cache
//! policy) and how many of its readers are outstanding (its staleness clock). They lie in the cache
//! line a lookup reads anyway.
//!
//! Invariants:
//! * the full 64-bit id is stored or implied by the position: two ids never share an entry;
//! * all-zero memory is an empty index, so a new one costs no more than its pages once touched;
//! * everything behind `&self` may run under a shared lock, everything that moves entries, locations
//!   or clocks takes `&mut self`.
//!
//! An index knows nothing of rows, devices or memory budgets: it reports its bytes, and the bytes a
//! growth would add before it happens ([`TableIndex::grow_bytes_if_inserting`]).

// What is not inlined into a function of an instruction set is compiled without it, and a prefetch that is a call of
// its own comes late.
#![allow(clippy::inline_always)]

mod compare;
mod direct_index;
mod flags;
mod hash_index;
mod location;
mod mmap_array;
mod prefetch;
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
