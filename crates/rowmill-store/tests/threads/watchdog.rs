//! Ends the test when no call has ended for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any call takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(50);

/// Watches calls until it is dropped.
pub(crate) struct Watchdog {
    calls: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn start() -> Self {
        let (calls, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, ended) = (Arc::clone(&calls), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            let (mut count, mut since) = (0, Instant::now());
            while !ended.load(Relaxed) {
                std::thread::sleep(LOOK);
                let now = seen.load(Relaxed);
                if now != count {
                    (count, since) = (now, Instant::now());
                } else if since.elapsed() > PATIENCE {
                    eprintln!(
                        "no call has ended for {PATIENCE:?}, {count} did before:\n{}",
                        rowmill_sync::report()
                    );
                    std::process::abort();
                }
            }
        });
        Self { calls, over, thread: Some(thread) }
    }

    /// Record that a call has ended.
    pub(crate) fn call_ended(&self) {
        self.calls.fetch_add(1, Relaxed);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
