//! The pool of threads that share the work of a call, and the rule for when a call is spread over it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use rowmill_io::ProcessLocal;
use rowmill_sync::Pool;

/// The pool of a store, and the number of calls that run now.
///
/// Spreading a call pays only while threads would be idle otherwise. When there are more calls than half the
/// threads, every core has work and a hand-over only costs. Each call then stays in the thread of its caller.
///
/// Tasks may run under locks that their caller holds, so a task takes no lock that its caller may hold.
/// Builds with `debug_assertions` check this ([`rowmill_sync`]).
#[derive(Debug)]
pub(crate) struct Workers {
    pool: ProcessLocal<Pool>,
    spread_rows_min: usize,
    callers: AtomicUsize,
    /// Jobs handed to the pool so far.
    spread: AtomicU64,
}

/// A running call.
#[derive(Debug)]
pub(crate) struct Caller<'a>(&'a AtomicUsize);

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Workers {
    pub(crate) fn new(pool: Pool, spread_rows_min: usize) -> Self {
        let pool = ProcessLocal::new(pool);
        Self { pool, spread_rows_min, callers: AtomicUsize::new(0), spread: AtomicU64::new(0) }
    }

    /// Count a running call until the returned value is dropped.
    pub(crate) fn enter(&self) -> Caller<'_> {
        self.callers.fetch_add(1, Relaxed);
        Caller(&self.callers)
    }

    /// Run `wait`, during which this call waits for another and is not counted as running.
    pub(crate) fn idle<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.callers.fetch_sub(1, Relaxed);
        let result = wait();
        self.callers.fetch_add(1, Relaxed);
        result
    }

    /// Whether no other call is running.
    pub(crate) fn is_alone(&self) -> bool {
        self.callers.load(Relaxed) <= 1
    }

    /// Whether a call with this many rows is spread: there must be at least two threads per running call.
    pub(crate) fn share(&self, rows: usize) -> bool {
        let callers = self.callers.load(Relaxed).max(1);
        rows >= self.spread_rows_min && self.pool.threads() >= 2 * callers
    }

    /// Jobs handed to the pool so far.
    pub(crate) fn spread(&self) -> u64 {
        self.spread.load(Relaxed)
    }

    /// Run `work` for every number in `[0, tasks)`, on several threads if that pays for a call with `rows`
    /// rows.
    pub(crate) fn for_each(&self, rows: usize, tasks: usize, work: impl Fn(usize) + Sync) {
        if tasks > 1 && self.share(rows) {
            self.spread.fetch_add(1, Relaxed);
            self.pool.for_each(tasks, work);
        } else {
            (0..tasks).for_each(work);
        }
    }

    /// As [`Workers::for_each`]; returns the results in the order of the numbers.
    pub(crate) fn map<T: Send>(&self, rows: usize, tasks: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        if tasks > 1 && self.share(rows) { self.map_all(tasks, work) } else { (0..tasks).map(work).collect() }
    }

    /// As [`Workers::map`], always on several threads.
    pub(crate) fn map_all<T: Send>(&self, tasks: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        self.spread.fetch_add(1, Relaxed);
        self.pool.map(tasks, work)
    }

    /// As [`Workers::for_each`], once per item.
    pub(crate) fn for_each_mut<T: Send>(&self, rows: usize, items: &mut [T], work: impl Fn(&mut T) + Sync) {
        if items.len() > 1 && self.share(rows) {
            self.spread.fetch_add(1, Relaxed);
            self.pool.for_each_mut(items, work);
        } else {
            items.iter_mut().for_each(work);
        }
    }

    /// As [`Workers::for_each`], for work that can fail. After a failure no further task starts.
    ///
    /// # Errors
    /// The error with the lowest number among the tasks that ran.
    pub(crate) fn try_for_each<E: Send>(
        &self,
        rows: usize,
        tasks: usize,
        work: impl Fn(usize) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let failed = AtomicBool::new(false);
        let attempt = |task| {
            if failed.load(Relaxed) {
                return Ok(());
            }
            work(task).inspect_err(|_| failed.store(true, Relaxed))
        };
        self.map(rows, tasks, attempt).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::SPREAD_ROWS_MIN;

    #[test]
    fn a_call_is_spread_while_there_are_two_threads_for_every_caller() {
        let workers = Workers::new(Pool::new(4).unwrap(), SPREAD_ROWS_MIN);
        assert!(!workers.share(SPREAD_ROWS_MIN - 1), "too few rows");
        assert!(workers.share(SPREAD_ROWS_MIN));
        let callers = [workers.enter(), workers.enter()];
        assert!(workers.share(SPREAD_ROWS_MIN));
        let third = workers.enter();
        assert!(!workers.share(SPREAD_ROWS_MIN));
        workers.idle(|| assert!(workers.share(SPREAD_ROWS_MIN)));
        drop((callers, third));
        assert!(workers.share(SPREAD_ROWS_MIN));
    }

    #[test]
    fn the_first_error_by_number_ends_the_work() {
        let workers = Workers::new(Pool::new(2).unwrap(), 1);
        let work = |task: usize| if task % 50 == 49 { Err(task) } else { Ok(()) };
        assert_eq!(workers.try_for_each(100, 49, work), Ok(()));
        let error = workers.try_for_each(100, 200, work).unwrap_err();
        assert_eq!(error % 50, 49);
        assert_eq!(workers.spread(), 2);
    }
}
