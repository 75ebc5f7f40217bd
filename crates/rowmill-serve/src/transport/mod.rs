//! Connections between the halves of a model: `tcp://` and `shm://`.
//!
//! Both carry the same messages over a stream socket. They differ in where large tensors are: behind the message on
//! the connection, or in the sender's arena, which the receiver has mapped. The socket wakes the receiver and tells
//! it when the peer dies, so neither end polls, and shared memory needs no second way to notice either.

mod address;
mod client;
mod descriptor;
mod incoming;
mod outbox;
mod server;
mod socket;

pub use address::{Address, AddressError};
pub use client::{CallError, Client, ClientOptions, Reserved};
pub use incoming::{Answers, Incoming, Replier};
pub use server::{Listener, Serving, serve};
