//! Groups: the tables of one spec, with their rows spread over shards.
//!
//! Every operation on rows works on a group. Rows of a call are visited shard by shard with prefetched
//! memory, and cold rows are read from the log. Groups share the memory for rows.

mod balance;
mod cold;
mod compaction;
mod group;
mod residents;
mod ticket;
mod walk;

pub(crate) use balance::{balance, shrink_all_if_over};
pub(crate) use cold::{ColdReading, ColdRows, as_bytes};
pub(crate) use group::{Group, GroupTable, Groups, SHARDS_MAX, ShardCell, shards_for};
pub(crate) use residents::{Absent, Residents, rows_in_order};
pub use ticket::Ticket;
pub(crate) use ticket::check_ticket;
pub(crate) use walk::{AllShards, CHUNK, Changeable, Known, Locked, look_ahead, rows_together, walk};
