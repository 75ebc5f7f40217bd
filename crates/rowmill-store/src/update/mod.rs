//! Changes of rows: put, read-modify-write, delete, and the backward of a pooled lookup.
//!
//! Gradients of duplicate ids are summed first, so each row takes one optimizer step per call. A change
//! releases the clocks that its step took.

mod backward;
mod update;

pub use backward::RowGradients;
pub(crate) use update::Target;
