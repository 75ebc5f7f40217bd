//! Admission and eviction of rows.
//!
//! Admission gives an id a row once it was asked for often enough. Eviction deletes rows by the rule of their
//! table.

mod admission;
mod eviction;

pub(crate) use admission::{Asked, DistinctIds};
