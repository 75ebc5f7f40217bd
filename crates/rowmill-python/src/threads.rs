//! Work of one call, shared by this thread and others.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Call `work` with every task below `tasks`, once: in this thread, and in up to `threads - 1` others that join it.
///
/// Threads are of this call's own: a pool would not survive a fork, and calls that are spread take milliseconds. This thread
/// works too: one that is late (torch's may still occupy its core) keeps nobody waiting.
pub(crate) fn spread(tasks: usize, threads: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let take = || {
        loop {
            let task = next.fetch_add(1, Relaxed);
            if task >= tasks {
                break;
            }
            work(task);
        }
    };
    if threads.min(tasks) <= 1 {
        return take();
    }
    std::thread::scope(|scope| {
        for _ in 1..threads.min(tasks) {
            scope.spawn(take);
        }
        take();
    });
}
