//! The orderly end of a process: it stops taking work, finishes what it has, and gives up at a deadline.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Says when the process stops taking work, and counts the work that is still open. Clones are the same drain.
#[derive(Clone, Debug)]
pub struct Drain {
    // A hold is a receiver, so the channel closes when the last hold is dropped.
    started: Arc<watch::Sender<bool>>,
}

/// Work that a drain waits for, until the hold is dropped.
#[derive(Debug)]
pub struct Hold {
    started: watch::Receiver<bool>,
}

/// Work was still open at the deadline of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{open} connections or requests were still open {deadline:?} after the drain started: raise the drain deadline"
)]
pub struct StillOpen {
    /// How many holds were left.
    pub open: usize,
    /// How long the drain waited.
    pub deadline: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

impl Drain {
    /// A drain that has not started.
    pub fn new() -> Self {
        Self { started: Arc::new(watch::Sender::new(false)) }
    }

    /// Stop taking work. Starting twice is the same as starting once.
    pub fn start(&self) {
        self.started.send_replace(true);
    }

    /// Whether the drain has started.
    pub fn has_started(&self) -> bool {
        *self.started.borrow()
    }

    /// Make the drain wait for some work: a connection, a listener, a request.
    pub fn hold(&self) -> Hold {
        Hold { started: self.started.subscribe() }
    }

    /// Start the drain and wait until every hold is dropped.
    ///
    /// # Errors
    /// When holds are left after `deadline`.
    pub async fn finish(&self, deadline: Duration) -> Result<(), StillOpen> {
        self.start();
        tokio::time::timeout(deadline, self.started.closed())
            .await
            .map_err(|_| StillOpen { open: self.started.receiver_count(), deadline })
    }
}

impl Hold {
    /// Wait until the drain starts.
    pub async fn draining(&mut self) {
        // The channel can close only after the drain is gone: then nothing waits for this hold either.
        let _ = self.started.wait_for(|&started| started).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn a_drain_ends_when_the_last_hold_is_dropped() {
        block_on(async {
            let drain = Drain::new();
            let mut hold = drain.hold();
            let worker = tokio::spawn(async move {
                hold.draining().await;
                drop(hold);
            });
            assert!(!drain.has_started());
            assert_eq!(drain.finish(Duration::from_mins(1)).await, Ok(()));
            assert!(drain.has_started());
            worker.await.unwrap();
        });
    }

    #[test]
    fn a_drain_gives_up_at_its_deadline_and_counts_what_is_open() {
        block_on(async {
            let drain = Drain::new();
            let holds = [drain.hold(), drain.hold()];
            let deadline = Duration::from_millis(5);
            assert_eq!(drain.finish(deadline).await, Err(StillOpen { open: 2, deadline }));
            drop(holds);
            assert_eq!(drain.finish(deadline).await, Ok(()));
        });
    }
}
