//! The state of a table, and helpers for single rows.
//!
//! `TableState` holds a table's spec, steps, counts, sampled hot ids, and the sketch that counts ids without
//! a row. Keys name the rows of a call. A row's weights are read and written as 32-bit floats. Its stamp
//! serves eviction.

mod event_clock;
mod hot_rows;
mod keys;
mod sketch;
mod stamp;
mod state;
mod weights;

pub(crate) use event_clock::{EVENT_TIME_MAX, EventClock};
pub(crate) use hot_rows::HotRows;
pub(crate) use keys::{Key, Keys, TableIds, home, write_keys};
pub(crate) use stamp::{Mark, rank_of_score, set_stamp, stamp_of};
pub(crate) use state::TableState;
pub(crate) use weights::{copy_floats, decode_row, floats_of, join_weights, write_row, write_weights};
