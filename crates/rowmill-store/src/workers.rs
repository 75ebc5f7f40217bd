//! The threads that share the work of a call.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rayon::ThreadPool;

/// Batches with fewer rows than this are not worth spreading over threads (a hand-over costs about 5 us).
const PARALLEL_ROWS_MIN: usize = 4096;

/// A pool of threads, and how many callers it has at the moment.
///
/// Spreading one call pays while threads would idle otherwise. When as many calls run at once as there are
/// threads, every core has work, and handing parts of it over only costs: each call then stays in the
/// thread that makes it.
#[derive(Debug)]
pub(crate) struct Workers {
    pool: ThreadPool,
    callers: AtomicUsize,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Caller<'a>(&'a AtomicUsize);

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Workers {
    pub(crate) fn new(pool: ThreadPool) -> Self {
        Self { pool, callers: AtomicUsize::new(0) }
    }

    /// Count a call until its value is dropped.
    pub(crate) fn enter(&self) -> Caller<'_> {
        self.callers.fetch_add(1, Relaxed);
        Caller(&self.callers)
    }

    /// A call under way waits for another: meanwhile it has no use for a thread.
    pub(crate) fn idle<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.callers.fetch_sub(1, Relaxed);
        let result = wait();
        self.callers.fetch_add(1, Relaxed);
        result
    }

    /// Whether no other call is under way.
    pub(crate) fn is_alone(&self) -> bool {
        self.callers.load(Relaxed) <= 1
    }

    /// Whether a call over this many rows is spread: at least two threads are there for every caller.
    pub(crate) fn share(&self, rows: usize) -> bool {
        let callers = self.callers.load(Relaxed).max(1);
        rows >= PARALLEL_ROWS_MIN && self.pool.current_num_threads() >= 2 * callers
    }

    /// Run `work`, whose parallel iterators use the pool.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.pool.install(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_spread_while_there_are_two_threads_for_every_caller() {
        let workers = Workers::new(rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap());
        assert!(!workers.share(PARALLEL_ROWS_MIN - 1), "too few rows");
        assert!(workers.share(PARALLEL_ROWS_MIN));
        let callers = [workers.enter(), workers.enter()];
        assert!(workers.share(PARALLEL_ROWS_MIN));
        let third = workers.enter();
        assert!(!workers.share(PARALLEL_ROWS_MIN));
        workers.idle(|| assert!(workers.share(PARALLEL_ROWS_MIN)));
        drop((callers, third));
        assert!(workers.share(PARALLEL_ROWS_MIN));
    }
}
