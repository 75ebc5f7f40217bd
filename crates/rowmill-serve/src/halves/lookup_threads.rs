//! A fixed number of threads that run transforms and plans, each a whole request at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::metrics::{HalfMetrics, Reason, Turn};
use crate::plan::Values;
use crate::{Arena, Failure, Status};

/// Threads that run transforms and plans. They end when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct LookupThreads {
    work: SyncSender<Work>,
    queue_max: usize,
}

type Job = Box<dyn FnOnce(&Arena) -> Result<Values, Failure> + Send>;

struct Work {
    job: Job,
    deadline: Instant,
    metrics: Arc<HalfMetrics>,
    turn: Turn,
    answer: oneshot::Sender<Result<Values, Failure>>,
}

impl LookupThreads {
    /// Start `threads` threads, for which at most `queue_max` requests wait. Results lie in `arena`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(threads: usize, queue_max: usize, arena: &Arena) -> std::io::Result<Self> {
        let (work, waiting) = sync_channel(queue_max);
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 0..threads {
            let (waiting, arena) = (Arc::clone(&waiting), arena.clone());
            std::thread::Builder::new()
                .name(format!("rowmill-lookup-{number}"))
                .spawn(move || run(&waiting, &arena))?;
        }
        Ok(Self { work, queue_max })
    }

    /// The values that `job` makes. It changes nothing outside of itself.
    ///
    /// # Errors
    /// When the job fails, its turn comes after `deadline`, or too many requests wait.
    pub(crate) async fn run(
        &self,
        deadline: Instant,
        metrics: &Arc<HalfMetrics>,
        job: impl FnOnce(&Arena) -> Result<Values, Failure> + Send + 'static,
    ) -> Result<Values, Failure> {
        let (answer, result) = oneshot::channel();
        let (turn, refused) = (metrics.queue(), Arc::clone(metrics));
        let work = Work { job: Box::new(job), deadline, metrics: Arc::clone(metrics), turn, answer };
        self.work.try_send(work).map_err(|error| {
            refused.refuse(Reason::QueueFull);
            let text = match error {
                TrySendError::Full(_) => {
                    format!(
                        "{} requests wait for a lookup thread: send fewer, or raise queue_requests",
                        self.queue_max
                    )
                }
                TrySendError::Disconnected(_) => "no lookup thread is left: restart the worker".into(),
            };
            Failure::new(Status::Full, text)
        })?;
        result.await.unwrap_or_else(|_| Err(Failure::new(Status::Failed, "the lookup thread ended")))
    }
}

fn run(waiting: &Mutex<Receiver<Work>>, arena: &Arena) {
    loop {
        // One thread waits in the channel, the others at the lock.
        let received = waiting.lock().recv();
        let Ok(Work { job, deadline, metrics, mut turn, answer }) = received else { return };
        turn.begin();
        let late =
            || Failure::new(Status::Late, "its deadline passed before a lookup thread was free: retry later");
        let result = if Instant::now() >= deadline {
            metrics.refuse(Reason::Late);
            Err(late())
        } else {
            // A job changes nothing but values of its own, so a panic leaves nothing half done.
            catch_unwind(AssertUnwindSafe(|| job(arena))).unwrap_or_else(|_| {
                tracing::error!("a transform or plan panicked");
                Err(Failure::new(Status::Failed, "the CPU half failed: see the worker's log"))
            })
        };
        match &result {
            Ok(_) => turn.end(),
            Err(failure) if failure.status == Status::Full => metrics.refuse(Reason::MemoryFull),
            Err(_) => {}
        }
        // The sender of the request may have given up.
        let _ = answer.send(result);
    }
}
