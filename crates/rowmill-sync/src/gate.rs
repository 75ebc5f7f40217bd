//! A gate: threads wait at it until another thread changes a state, such as the clocks of a shard, under
//! another lock.
//!
//! A waiter that cannot proceed reads the gate's generation *while it still holds that lock*. It then
//! releases the lock and waits until the generation changes. The other thread changes the state under the
//! lock, then opens the gate. An opening between the check and the wait changes the generation, so it is
//! never missed. Loom model-checks the protocol below.

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

/// Threads wait here until the gate is opened.
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
    /// The generation to wait on. Call it while holding the lock that guards the awaited state.
    pub fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    /// Wait until the gate is opened after `seen` was read, at most for `slice`.
    ///
    /// # Panics
    /// In builds with `debug_assertions`, when this thread, or the caller of its pool task, holds a lock.
    pub fn wait(&self, seen: u64, slice: Duration) {
        crate::rank::Inherited::refuse_to_wait("a gate");
        self.waiters.fetch_add(1, SeqCst);
        #[cfg(loom)]
        fence(SeqCst);
        let mut guard = self
            .mutex
            .lock()
            .expect("the gate's mutex is never poisoned: no code that can panic runs under it");
        if self.generation.load(SeqCst) == seen {
            guard = self.sleep(guard, slice);
        }
        drop(guard);
        self.waiters.fetch_sub(1, SeqCst);
    }

    /// Wake the waiting threads.
    pub fn open(&self) {
        self.generation.fetch_add(1, SeqCst);
        // Loom treats sequentially consistent accesses as weaker than they are, so the model needs this
        // fence.
        #[cfg(loom)]
        fence(SeqCst);
        if self.waiters.load(SeqCst) > 0 {
            // Taking the mutex orders this wake-up after the waiter's last check of the generation.
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
            .expect("the gate's mutex is never poisoned: no code that can panic runs under it")
            .0
    }

    /// Loom has no clock, so a lost wake-up shows as a deadlock.
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

    /// Like a clock in a shard: a plain integer under the shard's lock, and the gate outside it.
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
