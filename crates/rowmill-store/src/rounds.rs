//! A thread of the store that works in rounds until it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rowmill_sync::{Condvar, Mutex};

use crate::StoreError;
use crate::ranks;

/// The thread; dropping it stops and joins it.
#[derive(Debug)]
pub(crate) struct Rounds {
    stopping: Arc<Stopping>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the thread is to end.
#[derive(Debug, Default)]
pub(crate) struct Stopping {
    stop: AtomicBool,
    mutex: Mutex<(), ranks::Stopping>,
    wake: Condvar,
}

impl Stopping {
    /// A long round looks here now and then.
    pub(crate) fn is_due(&self) -> bool {
        self.stop.load(Relaxed)
    }

    fn wait_until(&self, next: Instant) {
        let mut guard = self.mutex.lock();
        while !self.is_due() && !!self.wake.wait_until(&mut guard, next) {}
    }
}

impl Rounds {
    /// Call `round` now and every `period`, until it returns false or the thread is stopped. A round that takes longer
    /// is followed by the next at once.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(crate) fn start(
        name: &str,
        period: Duration,
        mut round: impl FnMut(&Stopping) -> bool + Send + 'static,
    ) -> Result<Self, StoreError> {
        let stopping = Arc::new(Stopping::default());
        let seen = Arc::clone(&stopping);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            while !seen.is_due() {
                let next = Instant::now() + period;
                if !round(&seen) {
                    return;
                }
                seen.wait_until(next);
            }
        })?;
        Ok(Self { stopping, thread: Some(thread) })
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        self.stopping.stop.store(true, Relaxed);
        drop(self.stopping.mutex.lock());
        self.stopping.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to save from it.
            let _ = thread.join();
        }
    }
}
