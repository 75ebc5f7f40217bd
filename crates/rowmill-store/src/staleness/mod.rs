//! Bounded staleness: which training step holds the clock of which row.
//!
//! A ticket stands for one step. It takes each row's clock once, gives all clocks back when it is dropped, and is found by
//! waiting calls that look for the holders of a row or for a circle of waits.

mod tickets;

pub(crate) use tickets::{Call, Held, NO_LOOKUP, Release, Released, TicketState, Tickets};
