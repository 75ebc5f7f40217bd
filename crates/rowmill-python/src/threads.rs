//! Work of one call, shared by this thread and others.

use std::sync::{Mutex, PoisonError};

/// Call `work` with every task, once: in this thread, and in up to `threads - 1` others that join it.
///
/// Threads are of this call's own: a pool would not survive a fork, and calls that are spread take milliseconds. This thread
/// works too: one that is late (torch's may still occupy its core) keeps nobody waiting.
pub(crate) fn spread<T>(
    tasks: impl ExactSizeIterator<Item = T> + Send,
    threads: usize,
    work: impl Fn(T) + Sync,
) {
    let threads = threads.min(tasks.len());
    let tasks = Mutex::new(tasks);
    let take = || {
        loop {
            let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(task) = task else { break };
            work(task);
        }
    };
    if threads <= 1 {
        return take();
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(take);
        }
        take();
    });
}
