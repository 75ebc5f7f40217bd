//! Spread the work of one call over this thread and helper threads.

use std::sync::{Mutex, PoisonError};

/// Call `work` once with every task, in this thread and up to `threads - 1` helper threads.
///
/// Each call starts its own threads: a pool would not survive a fork, and calls that are spread take
/// milliseconds. This thread takes tasks too, so a helper that starts late (torch's threads may still occupy
/// its core) delays no one.
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
