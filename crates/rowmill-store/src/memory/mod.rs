//! The memory budget of a store.
//!
//! The index, rows in memory, buffers and I/O are charged to one budget. Calls claim working memory for a
//! time. Memory for slots of rows is reserved once and used page by page as slots are touched.

mod budget;
mod working_memory;

pub(crate) use budget::{Budget, Purpose};
pub(crate) use working_memory::Claim;
