//! Definition of a row: keys, specs, layouts and bags. This crate does no I/O and no arithmetic.
//!
//! A *row* is the bytes stored for one (category, id): the weights, followed contiguously by the optimizer
//! state. Tables whose [`GroupSpec`]s are equal share a *group*, and all rows of a group have one
//! [`RowLayout`].
#![forbid(unsafe_code)]

mod admission;
mod bag;
mod eviction;
mod initializer;
mod key;
mod layout;
mod optimizer;
mod ragged;
mod spec;

pub use admission::Admission;
pub use bag::{BagError, IdBag, Pooling};
pub use eviction::{Eviction, EvictionRule};
pub use initializer::Initializer;
pub use key::{Category, RowKey};
pub use layout::{Dtype, LINE_BYTES, RowLayout};
pub use optimizer::OptimizerSpec;
pub use ragged::{FeatureBags, Ragged};
pub use spec::{GroupSpec, IdRange, SpecError, StalenessBound, TableSpec};
