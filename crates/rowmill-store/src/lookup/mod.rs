//! Lookups: reading rows for training, with clocks, and for evaluation, without.
//!
//! A training read takes clocks, creates missing rows and resolves keys to addresses. A pooled lookup sums
//! the rows of many features in one call. Evaluation and plain reads insert nothing and take no clocks.

mod acquire;
mod entering;
mod evaluate;
mod lookup;
mod out;
mod placement;
mod read;
mod resolve;

pub(crate) use acquire::{Blocked, WAIT_SLICE};
pub(crate) use lookup::Feature;
pub use lookup::Lookup;
pub use out::Pooled;
pub(crate) use placement::Placement;
pub(crate) use read::{PIECE_ROWS, RowPart};
