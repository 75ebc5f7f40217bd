//! The halves of served models: what runs where, and the way of a request through them.
//!
//! A request passes the CPU half, the dense half and post-processing ([`Served`]). Transforms and plans run on a fixed number
//! of [`LookupThreads`]. A program of torch runs in a thread of Python, which takes batches from a [`Program`]. The dense half
//! is a [`Program`] of this process, or of another one ([`Remote`]). A request is admitted by the dense half before its lookups
//! run, so that none are in vain.

mod core_binding;
mod core_share;
mod dense;
mod joined;
mod lookup_threads;
mod next_batch;
mod program;
mod ranking;
mod remote;
mod served;
mod signature;
mod stage;
mod window;

pub(crate) use core_share::CoreShare;
pub(crate) use dense::{DenseHalf, serve_dense};
pub use joined::split;
pub(crate) use lookup_threads::LookupThreads;
pub use program::{Program, Task};
pub use ranking::TopK;
pub(crate) use remote::Remote;
pub(crate) use served::{Dense, Half, Served};
pub(crate) use signature::{HalfSignature, Signature};
