//! The memory budget of a store.
//!
//! The index, rows in memory, buffers and I/O are charged to one budget. Calls claim the memory that they need for a
//! time. Slots of rows are reserved once and take memory as they are touched.

mod budget;
mod working_memory;

pub(crate) use budget::Budget;
pub(crate) use working_memory::Claim;
