//! Bounded staleness: which training step holds the clock of which row.
//!
//! A ticket represents one training step. It takes each row's clock once and releases all clocks when it is
//! dropped. Waiting calls search the tickets for the holders of a row and for cycles of waits.

mod tickets;

pub(crate) use tickets::{Call, Held, NO_LOOKUP, Release, Released, TicketState, Tickets};
