//! Threads that share the work of one call, and background threads.
//!
//! A large enough call is spread over the pool of the store. Threads that fill one slice together write it
//! through `Scatter`. `Rounds` is a thread that repeats its work until it is stopped.

mod rounds;
mod scatter;
mod workers;

pub(crate) use rounds::{Rounds, spawn};
pub(crate) use scatter::Scatter;
pub(crate) use workers::Workers;
