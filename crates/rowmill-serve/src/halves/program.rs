//! A program that a Python thread runs. Requests wait in a deadline queue, and the thread takes batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::CoreShare;
use super::joined::join;
use super::next_batch::NextBatch;
use super::window::Ahead;
use crate::metrics::{HalfMetrics, Reason, Turn};
use crate::plan::Array;
use crate::{
    Arena, Batch, BatchLimits, BatchPart, Buffer, Dispatcher, Failure, Refusal, Replier, Reservation, Status,
    Submitted, Tensor,
};

/// The queue of a program. Clones are the same queue.
#[derive(Clone)]
pub struct Program {
    queue: Arc<Dispatcher<Task>>,
    limits: BatchLimits,
    share: Option<Arc<CoreShare>>,
    /// The part of the CPU time that its batches use.
    part: Arc<Mutex<BatchPart>>,
    metrics: Arc<HalfMetrics>,
    next: Arc<NextBatch>,
    /// Whether requests of a batch are joined.
    joins: Arc<AtomicBool>,
    is_closed: Arc<AtomicBool>,
}

/// A request to a program. Dropped without an answer, it fails.
#[derive(Debug)]
pub struct Task {
    /// Its inputs, in the order of the program's signature.
    pub tensors: Vec<Tensor>,
    turn: Turn,
    /// Dropped when its batch begins.
    ahead: Option<Ahead>,
    answer: Way,
}

/// The way back.
#[derive(Debug)]
enum Way {
    Here(oneshot::Sender<Result<Vec<Tensor>, Failure>>),
    Peer(Replier),
}

impl Program {
    /// A program whose batches have these limits. With a `share`, it decides how many run at once.
    pub(crate) fn new(
        limits: BatchLimits,
        share: Option<Arc<CoreShare>>,
        metrics: &Arc<HalfMetrics>,
    ) -> Self {
        metrics.set_batches(limits.batches_max);
        let refused = Arc::clone(metrics);
        let refuse = move |task: Task, refusal: Refusal| {
            refused.refuse(Reason::from(refusal));
            task.fail(refusal.into());
        };
        Self {
            queue: Dispatcher::new(limits, refuse),
            limits,
            share,
            part: Arc::default(),
            metrics: Arc::clone(metrics),
            next: Arc::default(),
            joins: Arc::default(),
            is_closed: Arc::default(),
        }
    }

    /// Admit a request of `rows` that is still to come, so that no work is done for one that would be refused.
    ///
    /// # Errors
    /// When it would be refused now.
    pub(crate) fn reserve(&self, rows: u32, deadline: Instant) -> Result<Reservation<Task>, Failure> {
        self.queue.reserve(deadline, rows).map_err(|refusal| {
            self.metrics.refuse(Reason::from(refusal));
            refusal.into()
        })
    }

    /// Count a request whose outputs had no room.
    pub fn count_memory_full(&self) {
        self.metrics.refuse(Reason::MemoryFull);
    }

    /// Queue a request of a peer, or refuse it at once.
    pub(crate) fn submit_of_peer(
        &self,
        tensors: Vec<Tensor>,
        deadline: Instant,
        replier: Replier,
        place: Option<Reservation<Task>>,
    ) {
        // No message says that a peer has given a request up.
        self.submit(tensors, deadline, Way::Peer(replier), place, None).keep();
    }

    /// The outputs of a request of this process. A request that is given up while it waits does not run.
    ///
    /// # Errors
    /// When the program refuses or fails.
    pub(super) async fn run(
        &self,
        tensors: Vec<Tensor>,
        deadline: Instant,
        place: Option<Reservation<Task>>,
        ahead: Option<Ahead>,
    ) -> Result<Vec<Tensor>, Failure> {
        let (answer, result) = oneshot::channel();
        let _withdraws = self.submit(tensors, deadline, Way::Here(answer), place, ahead);
        result.await.unwrap_or_else(|_| {
            Err(Failure::new(Status::Failed, "the program dropped the request: see the worker's log"))
        })
    }

    fn submit(
        &self,
        tensors: Vec<Tensor>,
        deadline: Instant,
        answer: Way,
        place: Option<Reservation<Task>>,
        ahead: Option<Ahead>,
    ) -> Submitted<Task> {
        let rows = rows_of(&tensors);
        let task = Task { tensors, turn: self.metrics.queue(), ahead, answer };
        match place {
            Some(place) => place.submit(rows, task),
            None => self.queue.submit(deadline, rows, task),
        }
    }

    /// Wait for a batch, `wait` at most, as the thread of this `number`: those with the lowest numbers run batches.
    pub fn take(&self, number: usize, wait: Duration) -> Option<Batch<Task>> {
        if let Some(share) = &self.share {
            share.add_batch_thread();
        }
        let Some(mut batch) = self.queue.take(number, wait) else {
            if let Some(share) = &self.share {
                share.rest(Instant::now());
            }
            return None;
        };
        self.next.close();
        for task in &mut batch.requests {
            task.turn.begin();
            task.ahead = None;
        }
        Some(batch)
    }

    /// The inputs of a batch as those of one request, whose rows are those of the requests.
    ///
    /// # Errors
    /// When types or shapes differ in more than the number of rows, or the arena has no room. No input is changed then.
    pub fn join(&self, batch: &mut Batch<Task>, arena: &Arena) -> Result<Vec<Tensor>, Failure> {
        self.joins.store(true, Relaxed);
        join(&mut batch.requests, arena)
    }

    /// Copies of the inputs of a request that will wait, where those of the next batch come together. `None` where a batch is
    /// not joined, or the request may run at once.
    pub(super) fn gather(&self, arena: &Arena, inputs: &[Array]) -> Option<Vec<Buffer>> {
        if !self.joins.load(Relaxed) || !self.queue.is_busy() {
            return None;
        }
        self.next.add(arena, self.limits, inputs)
    }

    /// Count CPU time that running the program has taken, and decide again how many batches and lookups run at once.
    pub fn add_cpu(&self, taken: Duration) {
        self.metrics.add_cpu(taken);
        let Some(share) = &self.share else { return };
        let now = Instant::now();
        share.add_batch(now, taken);
        let part = self.part.lock().add(now, taken);
        if let Some(part) = part {
            let batches = share.batches(part);
            self.queue.set_batches(batches);
            self.metrics.set_batches(batches);
        }
    }

    /// How much its batches may hold.
    pub(super) fn limits(&self) -> BatchLimits {
        self.limits
    }

    /// How many of them may run at once now.
    pub(super) fn batches(&self) -> usize {
        self.metrics.batches()
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.queue.queued()
    }

    /// Refuse what waits and what comes.
    pub fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.queue.close();
    }

    /// Whether no batch will come any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("queued", &self.queued()).finish_non_exhaustive()
    }
}

/// Rows that a request adds to a batch: the size of its first tensor's first dimension.
fn rows_of(tensors: &[Tensor]) -> u32 {
    let rows = tensors.first().and_then(|tensor| tensor.shape.first()).copied().unwrap_or(1);
    u32::try_from(rows).unwrap_or(u32::MAX)
}

impl Task {
    /// Rows that it adds to a batch.
    pub(super) fn rows(&self) -> u64 {
        u64::from(rows_of(&self.tensors))
    }

    /// Take other tensors with the same elements as inputs. Those of a peer stay: it learns with the reply that they are free.
    pub(super) fn replace_inputs(&mut self, tensors: Vec<Tensor>) {
        if let Way::Here(_) = self.answer {
            self.tensors = tensors;
        }
    }

    /// Answer with the outputs, named by their numbers.
    pub fn reply(self, outputs: Vec<Tensor>) {
        let Self { tensors, turn, answer, .. } = self;
        turn.end();
        // First: what a peer has lent is then released with the reply.
        drop(tensors);
        match answer {
            // The sender of the request may have given up.
            Way::Here(answer) => drop(answer.send(Ok(outputs))),
            Way::Peer(replier) => replier.reply(outputs),
        }
    }

    /// Report that the request failed.
    pub fn fail(self, failure: Failure) {
        let Self { tensors, answer, .. } = self;
        drop(tensors);
        match answer {
            // As above.
            Way::Here(answer) => drop(answer.send(Err(failure))),
            Way::Peer(replier) => replier.fail(failure.status, &failure.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LookupThreads;
    use super::*;
    use crate::{DType, TensorName};

    #[test]
    fn batches_that_use_little_of_the_cpu_time_run_one_at_a_time() {
        let metrics = Arc::new(HalfMetrics::default());
        let limits =
            BatchLimits { batch_requests_max: 1, batch_rows_max: 1, queue_requests_max: 8, batches_max: 8 };
        let threads = LookupThreads::start(16, 8, &Arena::new(1 << 20).unwrap()).unwrap();
        let share = Arc::new(CoreShare::new(8, threads.limit()));
        let program = Program::new(limits, Some(share), &metrics);
        assert_eq!((metrics.batches(), threads.at_once()), (8, 16));
        let begun = Instant::now();
        for batch in 1..=110 {
            while begun.elapsed() < Duration::from_millis(10) * batch {
                std::hint::spin_loop();
            }
            program.add_cpu(Duration::from_micros(1));
        }
        assert_eq!((metrics.batches(), threads.at_once()), (1, 8));
        program.add_cpu(Duration::from_mins(1));
        assert_eq!(metrics.batches(), 1, "it is decided once per second");
    }

    #[tokio::test]
    async fn waiting_requests_are_joined_without_a_copy_in_any_order() {
        let arena = Arena::new(1 << 20).unwrap();
        let limits =
            BatchLimits { batch_requests_max: 4, batch_rows_max: 64, queue_requests_max: 8, batches_max: 1 };
        let program = Program::new(limits, None, &Arc::default());
        let input = |fill| {
            let data = Buffer::from(&[fill; 6000][..]);
            [Array { dtype: DType::UInt8, shape: vec![2, 3000], data }]
        };
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        let ask = |data: Buffer, seconds| {
            let tensor = Tensor::new(TensorName::Number(0), DType::UInt8, &[2, 3000], data);
            let program = program.clone();
            tokio::spawn(async move { program.run(vec![tensor], later(seconds), None, None).await })
        };
        let waiting = async |requests| {
            while program.queued() < requests {
                tokio::task::yield_now().await;
            }
        };
        let mut asked = vec![ask(input(0)[0].data.clone(), 60)];
        waiting(1).await;
        let mut running = program.take(0, Duration::ZERO).unwrap();
        assert!(program.gather(&arena, &input(1)).is_none(), "batches are not joined yet");
        program.join(&mut running, &arena).unwrap();
        let [early, late] = [1, 2].map(|fill| program.gather(&arena, &input(fill)).unwrap().remove(0));
        let start = early.as_ptr();
        asked.extend([ask(early, 90), ask(late, 60)]);
        waiting(2).await;
        drop(running);
        let mut batch = program.take(0, Duration::ZERO).unwrap();
        let joined = program.join(&mut batch, &arena).unwrap().remove(0);
        assert_eq!((joined.data.as_ptr(), &joined.shape[..]), (start, &[4, 3000][..]));
        assert_eq!([joined.data[5999], joined.data[6000]], [1, 2]);
        drop(batch);
        assert!(program.gather(&arena, &input(3)).is_none(), "the next request may run at once");
        for asked in asked {
            assert_eq!(asked.await.unwrap().unwrap_err().status, Status::Failed);
        }
        drop(joined);
        assert_eq!(arena.held_bytes(), 0);
    }
}
