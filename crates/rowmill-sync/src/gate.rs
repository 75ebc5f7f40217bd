//! Waiting for something that another thread changes under a lock of its own, such as the clocks of a shard.
//!
//! A waiter that finds it cannot go on notes the gate's generation *while it still holds that lock*, releases the
//! lock and waits for another generation. The other side changes the state under the lock and then opens the gate.
//! So an opening between the look and the wait is never missed: it has changed the generation. The protocol is
//! model-checked below under loom.

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst, fence},
};
#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
};
use std::time::Duration;

/// A place to wait at until it is opened.
#[derive(Debug)]
pub struct Gate {
    generation: AtomicU64,
    waiters: AtomicUsize,
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            generation: AtomicU64::new(0),
            waiters: AtomicUsize::new(0),
            mutex: Mutex::new(()),
            changed: Condvar::new(),
        }
    }
}

impl Gate {
    /// The generation to wait on; call it under the lock that guards what is waited for.
    pub fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    /// Wait until the gate was opened after `seen`, at most for `slice`.
    ///
    /// # Panics
    /// In builds with `debug_assertions`, when this thread or the caller of its task holds a lock.
    pub fn wait(&self, seen: u64, slice: Duration) {
        crate::rank::Inherited::refuse_to_wait("a gate");
        self.waiters.fetch_add(1, SeqCst);
        #[cfg(loom)]
        fence(SeqCst);
        let mut guard = self.mutex.lock().expect("the gate's mutex guards no data that could be broken");
        if self.generation.load(SeqCst) == seen {
            guard = self.sleep(guard, slice);
        }
        drop(guard);
        self.waiters.fetch_sub(1, SeqCst);
    }

    /// Wake the threads that wait.
    pub fn open(&self) {
        self.generation.fetch_add(1, SeqCst);
        // The model takes sequentially consistent accesses for less than they are.
        #[cfg(loom)]
        fence(SeqCst);
        if self.waiters.load(SeqCst) > 0 {
            // Taking the mutex orders this wake-up after a waiter's last look at the generation.
            drop(self.mutex.lock());
            self.changed.notify_all();
        }
    }

    #[cfg(not(loom))]
    fn sleep<'a>(
        &self,
        guard: std::sync::MutexGuard<'a, ()>,
        slice: Duration,
    ) -> std::sync::MutexGuard<'a, ()> {
        self.changed
            .wait_timeout(guard, slice)
            .expect("the gate's mutex guards no data that could be broken")
            .0
    }

    /// The model has no clock: a wake-up that is lost shows as a deadlock.
    #[cfg(loom)]
    fn sleep<'a>(
        &self,
        guard: loom::sync::MutexGuard<'a, ()>,
        _slice: Duration,
    ) -> loom::sync::MutexGuard<'a, ()> {
        self.changed.wait(guard).unwrap()
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A clock as a shard keeps it: a plain word under the shard's lock, and the gate outside.
    struct Row {
        outstanding: Mutex<u32>,
        gate: Gate,
    }

    fn take(row: &Row, bound: u32) {
        loop {
            let mut outstanding = row.outstanding.lock().unwrap();
            if *outstanding <= bound {
                *outstanding += 1;
                assert!(*outstanding <= bound + 1, "more outstanding gets than the bound allows");
                return;
            }
            let seen = row.gate.generation();
            drop(outstanding);
            row.gate.wait(seen, Duration::MAX);
        }
    }

    fn release(row: &Row) {
        *row.outstanding.lock().unwrap() -= 1;
        row.gate.open();
    }

    fn check(bound: u32, workers: usize) {
        loom::model(move || {
            let row = Arc::new(Row { outstanding: Mutex::new(0), gate: Gate::default() });
            let handles: Vec<_> = (0..workers)
                .map(|_| {
                    let row = Arc::clone(&row);
                    thread::spawn(move || {
                        take(&row, bound);
                        release(&row);
                    })
                })
                .collect();
            for handle in handles {
                handle.join().unwrap();
            }
            assert_eq!(*row.outstanding.lock().unwrap(), 0);
        });
    }

    #[test]
    fn bound_zero_admits_one_and_loses_no_wakeup() {
        check(0, 2);
    }

    #[test]
    fn bound_one_admits_two() {
        check(1, 3);
    }
}
