//! A background thread that works in rounds until it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rowmill_sync::{Condvar, Mutex, Poison, ranks};

use crate::error::StoreError;

/// The thread. Dropping it stops and joins it.
#[derive(Debug)]
pub(crate) struct Rounds {
    stopping: Arc<Stopping>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the thread was asked to stop.
#[derive(Debug, Default)]
pub(crate) struct Stopping {
    stop: AtomicBool,
    mutex: Mutex<(), ranks::Stopping>,
    wake: Condvar,
}

impl Stopping {
    /// Whether the thread must stop. A long round checks this from time to time.
    pub(crate) fn is_due(&self) -> bool {
        self.stop.load(Relaxed)
    }

    fn wait_until(&self, next: Instant) {
        let (mut guard, mut in_time) = (self.mutex.lock(), true);
        while in_time && !self.is_due() {
            (guard, in_time) = self.wake.wait_until(guard, next);
        }
    }
}

impl Rounds {
    /// Call `round` in the thread `rowmill-{name}` now and every `period`. It ends when `round` returns
    /// false, when the thread is stopped, or when `round` panics, which poisons the store. A round that takes
    /// longer than `period` is followed by the next one at once.
    ///
    /// # Errors
    /// [`StoreError::Thread`].
    pub(crate) fn start(
        name: &'static str,
        period: Duration,
        poison: Arc<Poison>,
        mut round: impl FnMut(&Stopping) -> bool + Send + 'static,
    ) -> Result<Self, StoreError> {
        let stopping = Arc::new(Stopping::default());
        let seen = Arc::clone(&stopping);
        let rounds = move || {
            while !seen.is_due() {
                let next = Instant::now() + period;
                if !round(&seen) {
                    return;
                }
                seen.wait_until(next);
            }
        };
        let thread = spawn(name, move || {
            // The cause is kept in `poison`, where every later write finds it.
            let _ = poison.catch(&format!("the {name} thread"), rounds);
        })?;
        Ok(Self { stopping, thread: Some(thread) })
    }
}

/// Start the thread `rowmill-{name}`.
///
/// # Errors
/// [`StoreError::Thread`].
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    let name = format!("rowmill-{name}");
    let thread = std::thread::Builder::new().name(name.clone());
    thread.spawn(work).map_err(|source| StoreError::Thread { name, source })
}

impl Drop for Rounds {
    fn drop(&mut self) {
        self.stopping.stop.store(true, Relaxed);
        drop(self.stopping.mutex.lock());
        self.stopping.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was caught and has already poisoned the store.
            let _ = thread.join();
        }
    }
}
