//! Admission and eviction of rows.
//!
//! Admission creates a row for an id once it was requested often enough. Eviction deletes rows by the rule of their
//! table.

mod admission;
mod eviction;

pub(crate) use admission::{Asked, DistinctIds};
