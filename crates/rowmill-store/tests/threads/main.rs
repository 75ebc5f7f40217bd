//! Every public call from many threads, on stores whose pools have more threads than this machine has cores.
//!
//! What could break: a call waits for a lock that is never released. Each of these once stopped all callers
//! forever: a pool thread that runs another call's task while it waits; two locks taken in both orders; a
//! task that takes a lock that its caller holds. The calls here are spread over the pool, whatever their size. A
//! watchdog ends the test when no call has ended for a while, and prints which thread holds and wants which
//! lock. In this build, each lock taken out of order panics.
//!
//! `ROWMILL_TEST_LONG=1` mixes calls for minutes instead of seconds.

#[path = "../common/mod.rs"]
mod common;

mod circles;
mod mix;
mod watchdog;
