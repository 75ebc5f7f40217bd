//! When a row begins and when it ends: admission and eviction.
//!
//! Admission gives an id a row once it was asked for often enough. Eviction deletes rows by the rule of their table.

mod admission;
mod eviction;

pub(crate) use admission::{Asked, DistinctIds};
