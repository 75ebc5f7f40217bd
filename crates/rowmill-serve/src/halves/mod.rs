//! The halves of served models: what runs where, and the way of a request through them.
//!
//! A request passes the CPU half, the dense half and post-processing ([`Served`]). Transforms and plans run on a fixed number
//! of [`LookupThreads`]. A program of torch runs in a thread of Python, which takes batches from a [`Program`]. The dense half
//! is a [`Program`] of this process, or of another one behind a [`Client`](crate::Client).

mod dense;
mod lookup_threads;
mod program;
mod ranking;
mod served;
mod signature;

pub(crate) use dense::{DenseHalf, serve_dense};
pub(crate) use lookup_threads::LookupThreads;
pub use program::{Program, Task};
pub use ranking::TopK;
pub(crate) use served::{Dense, Half, Served};
pub(crate) use signature::{HalfSignature, Signature};
