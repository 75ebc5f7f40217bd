//! Records what one thread did to rows, and when.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::operation::{Effect, Operation, Thread};

/// The total order of all beginnings and ends.
#[derive(Debug, Default)]
pub(crate) struct Order(AtomicU64);

impl Order {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, SeqCst)
    }
}

/// Operations of one thread.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    thread: Thread,
    order: &'a Order,
    pub(crate) operations: Vec<Operation>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(thread: Thread, order: &'a Order) -> Self {
        Self { thread, order, operations: Vec::new() }
    }

    /// The position at which an operation begins; it is recorded when it ends.
    pub(crate) fn begin(&self) -> u64 {
        self.order.next()
    }

    /// Record that the operation begun at `begun` has ended with these effects on these rows.
    pub(crate) fn end(&mut self, begun: u64, effects: impl IntoIterator<Item = (u32, Effect)>) {
        let (thread, ended) = (self.thread, self.order.next());
        let operation = |(row, effect)| Operation { thread, row, begun, ended, effect };
        self.operations.extend(effects.into_iter().map(operation));
    }
}
