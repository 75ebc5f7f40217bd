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

mod compare;
mod direct_index;
mod flags;
mod hash_index;
mod location;
mod shard;
mod table_index;
mod zeroed_array;

#[cfg(target_arch = "x86_64")]
pub(crate) use compare::Avx512;
pub(crate) use compare::{Compare, Plain};
pub(crate) use flags::CLOCK_OVERFLOW;
pub(crate) use hash_index::HashIndex;
pub(crate) use location::{Found, Location, Place};
pub(crate) use shard::{dense_shard_of, hash, mix, shard_and_hash_of, shard_of};
pub(crate) use table_index::TableIndex;

#[cfg(test)]
mod tests;
