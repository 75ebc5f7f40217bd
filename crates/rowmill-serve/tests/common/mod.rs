//! What tests of messages and transports share.
#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod dense;
pub(crate) mod door;
pub(crate) mod inference;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rowmill_serve::{Arena, Buffer};

/// Room for any message of these tests.
pub(crate) fn arena() -> Arena {
    Arena::new(32 << 20).unwrap()
}

/// Bytes outside of an arena.
pub(crate) fn heap(bytes: &[u8]) -> Buffer {
    Buffer::from(bytes)
}

/// The result of reading from memory, which never waits.
pub(crate) fn poll_now<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("reading from memory waits"),
    }
}
