//! A fixed number of threads that run transforms and plans, each a whole request at a time, in the order of deadlines. Where batches
//! need cores, fewer jobs run at once ([`LookupLimit`]).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::stage::Stage;
use super::window::{Ahead, Window};
use crate::metrics::{Reason, Turn};
use crate::plan::Values;
use crate::{Arena, Failure, Refusal, Status};

/// Threads that run transforms and plans. They end when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct LookupThreads(Arc<Owner>);

#[derive(Debug)]
struct Owner(Arc<Shared>);

/// Limits how many jobs run at once, fewer than there are threads.
#[derive(Debug)]
pub(crate) struct LookupLimit(Weak<Shared>);

/// What the threads share, and those that wake them.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    threads: usize,
    queue_max: usize,
}

#[derive(Debug, Default)]
struct State {
    queue: BTreeMap<Order, Work>,
    /// Jobs that have arrived.
    arrivals: u64,
    running: usize,
    /// Predicted time of all jobs that run.
    running_time: Duration,
    /// How many run at once at most, and until when this is known.
    limit: Option<(usize, Instant)>,
    is_closed: bool,
}

/// What waits when a job arrives.
#[derive(Debug, Default)]
struct Load {
    /// Jobs of the same stage.
    queued: usize,
    /// Jobs of all stages that run before it.
    before: usize,
    /// Their predicted time.
    time: Duration,
}

/// A job that waits or runs. Dropped while the job waits, it withdraws it.
struct Withdrawal {
    order: Order,
    threads: Arc<Shared>,
}

/// When a job runs: by its part, its deadline, and the number of its arrival.
type Order = (Part, Instant, u64);

/// How long a limit holds that is not set again: it is set every second while batches run.
const LIMIT_TIME: Duration = Duration::from_secs(3);

type Job = Box<dyn FnOnce(&Arena) -> Result<Values, Failure> + Send>;

/// A job and its request.
struct Work {
    job: Job,
    rows: u32,
    deadline: Instant,
    stage: Arc<Stage>,
    /// How far it may run ahead of the dense half; `None`: as far as it likes.
    window: Option<Arc<Window>>,
    predicted: Duration,
    turn: Turn,
    answer: oneshot::Sender<Result<Done, Failure>>,
}

/// What a job has made.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) values: Values,
    /// Held until the dense half takes the request; `None` where the job has no window.
    pub(super) ahead: Option<Ahead>,
}

/// What a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// A request that the dense half has answered: it goes before all that wait for lookups.
    Last,
    /// A new request: refused at once where its answer is predicted to be late.
    First,
}

impl LookupThreads {
    /// Start `threads` threads, for which at most `queue_max` requests wait. Results lie in `arena`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(threads: usize, queue_max: usize, arena: &Arena) -> std::io::Result<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, changed, threads, queue_max });
        let owner = Self(Arc::new(Owner(Arc::clone(&shared))));
        for number in 0..threads {
            let (shared, arena) = (Arc::clone(&shared), arena.clone());
            std::thread::Builder::new()
                .name(format!("rowmill-lookup-{number}"))
                .spawn(move || shared.run(&arena))?;
        }
        Ok(owner)
    }

    /// The values that `job` makes for a request of `rows`, once its `window` is open. It changes nothing outside of itself.
    ///
    /// # Errors
    /// When the job fails, the request is predicted to be late, or too many wait.
    pub(super) async fn run(
        &self,
        part: Part,
        stage: &Arc<Stage>,
        window: Option<&Arc<Window>>,
        rows: u32,
        deadline: Instant,
        job: impl FnOnce(&Arena) -> Result<Values, Failure> + Send + 'static,
    ) -> Result<Done, Failure> {
        let (answer, result) = oneshot::channel();
        let (turn, stage, job) = (stage.metrics.queue(), Arc::clone(stage), Box::new(job));
        let (window, predicted) = (window.cloned(), Duration::ZERO);
        let work = Work { job, rows, deadline, stage, window, predicted, turn, answer };
        let _withdraws = self.0.0.submit(part, work)?;
        result.await.unwrap_or_else(|_| Err(Failure::new(Status::Failed, "the lookup threads ended")))
    }

    /// Refuse a new request of `rows` as [`Self::run`] would now.
    ///
    /// # Errors
    /// When the request is predicted to be late, or too many wait.
    pub(super) fn check(
        &self,
        stage: &Arc<Stage>,
        window: Option<&Arc<Window>>,
        rows: u32,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let shared = &self.0.0;
        shared.admit(&shared.state.lock(), Part::First, stage, window, rows, deadline).map(drop)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.0.threads
    }

    /// What limits how many jobs run at once.
    pub(crate) fn limit(&self) -> LookupLimit {
        LookupLimit(Arc::downgrade(&self.0.0))
    }

    /// How many jobs run at once at most.
    #[cfg(test)]
    pub(super) fn at_once(&self) -> usize {
        self.0.0.state.lock().at_once(self.count())
    }
}

impl LookupLimit {
    /// For some seconds, run at most this number of jobs at once; `None`: one per thread.
    pub(super) fn set(&self, at_once: Option<usize>) {
        let Some(shared) = self.0.upgrade() else { return };
        let mut state = shared.state.lock();
        let before = state.at_once(shared.threads);
        state.limit = at_once.map(|at_once| (at_once.max(1), Instant::now() + LIMIT_TIME));
        let is_raised = state.at_once(shared.threads) > before;
        drop(state);
        if is_raised {
            shared.changed.notify_all();
        }
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        // The job may hold much memory, whose release needs no lock.
        let withdrawn = self.threads.state.lock().queue.remove(&self.order);
        drop(withdrawn);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn submit(self: &Arc<Self>, part: Part, mut work: Work) -> Result<Withdrawal, Failure> {
        let mut state = self.state.lock();
        let (stage, window) = (&work.stage, work.window.as_ref());
        work.predicted = self.admit(&state, part, stage, window, work.rows, work.deadline)?;
        let order = (part, work.deadline, state.arrivals);
        let may_start = state.has_free(self.threads)
            && work.window.as_ref().is_none_or(|window| window.is_open(work.deadline));
        state.arrivals += 1;
        state.queue.insert(order, work);
        drop(state);
        if may_start {
            self.changed.notify_one();
        }
        Ok(Withdrawal { order, threads: Arc::clone(self) })
    }

    /// The predicted time of a job, unless it is refused.
    fn admit(
        &self,
        state: &State,
        part: Part,
        stage: &Arc<Stage>,
        window: Option<&Arc<Window>>,
        rows: u32,
        deadline: Instant,
    ) -> Result<Duration, Failure> {
        if part == Part::Last {
            // The dense half has run already: its request is not refused any more.
            return Ok(stage.predict(rows, 0).0);
        }
        let Load { queued, before, time } = state.load((part, deadline, u64::MAX), stage, window);
        if queued >= self.queue_max {
            return Err(refused(stage, Refusal::Full { queued }));
        }
        let (ahead, threads) = (before + state.running, state.at_once(self.threads));
        let (predicted, margin) = stage.predict(rows, ahead / threads);
        // With no one ahead the job runs: nothing else could correct a prediction that is too long.
        if ahead > 0 {
            let wait = (time + state.running_time) / threads as u32;
            let needed = wait + predicted + margin + stage.rest();
            let left = deadline.saturating_duration_since(Instant::now());
            if needed > left {
                return Err(refused(stage, Refusal::Late { needed, left, queued: before }));
            }
        }
        Ok(predicted)
    }

    /// A window may have opened.
    pub(super) fn wake(&self) {
        let state = self.state.lock();
        let may_start = !state.queue.is_empty() && state.has_free(self.threads);
        drop(state);
        if may_start {
            self.changed.notify_one();
        }
    }

    /// The life of a thread.
    fn run(self: Arc<Self>, arena: &Arena) {
        let mut state = self.state.lock();
        loop {
            let next = if state.has_free(self.threads) { state.next(&self) } else { None };
            let Some((work, ahead)) = next else {
                if state.is_closed {
                    return;
                }
                self.changed.wait(&mut state);
                continue;
            };
            let is_alone = state.running == 0 && state.first_open().is_none();
            let predicted = work.predicted;
            state.running += 1;
            state.running_time += predicted;
            drop(state);
            work.run(arena, ahead, is_alone);
            state = self.state.lock();
            state.running -= 1;
            state.running_time -= predicted;
        }
    }
}

impl State {
    /// How many of this number of threads run jobs at once at most.
    fn at_once(&self, threads: usize) -> usize {
        let limit = self.limit.filter(|&(_, until)| Instant::now() < until);
        limit.map_or(threads, |(at_once, _)| at_once.min(threads))
    }

    /// Whether one more job may run now.
    fn has_free(&self, threads: usize) -> bool {
        self.running < self.at_once(threads)
    }

    /// Take out the first job in order whose window is open.
    fn next(&mut self, threads: &Arc<Shared>) -> Option<(Work, Option<Ahead>)> {
        let order = self.first_open()?;
        let work = self.queue.remove(&order)?;
        let ahead = work.window.as_ref().map(|window| window.enter(order.1, order.2, work.rows, threads));
        Some((work, ahead))
    }

    /// What waits, for a job of this order. Jobs of another model do not count while its window is closed: they wait for its
    /// dense half, and not for a thread.
    fn load(&self, order: Order, stage: &Arc<Stage>, window: Option<&Arc<Window>>) -> Load {
        let mut load = Load::default();
        let mut others: Vec<(&Arc<Window>, bool)> = Vec::new();
        for (&other, work) in &self.queue {
            load.queued += usize::from(Arc::ptr_eq(&work.stage, stage));
            if other > order {
                continue;
            }
            let is_held = work.window.as_ref().is_some_and(|of_work| {
                if window.is_some_and(|window| Arc::ptr_eq(window, of_work)) {
                    return false;
                }
                if let Some(&(_, is_closed)) = others.iter().find(|(known, _)| Arc::ptr_eq(known, of_work)) {
                    return is_closed;
                }
                let is_closed = !of_work.is_open(other.1);
                others.push((of_work, is_closed));
                is_closed
            });
            if !is_held {
                load.before += 1;
                load.time += work.predicted;
            }
        }
        load
    }

    fn first_open(&self) -> Option<Order> {
        // A window that is closed for one request is closed for all later ones.
        let mut closed: Vec<&Arc<Window>> = Vec::new();
        for (&order, work) in &self.queue {
            match &work.window {
                Some(window) if closed.iter().any(|other| Arc::ptr_eq(other, window)) => {}
                Some(window) if !window.is_open(order.1) => closed.push(window),
                _ => return Some(order),
            }
        }
        None
    }
}

impl Work {
    fn run(self, arena: &Arena, ahead: Option<Ahead>, is_alone: bool) {
        let Self { job, rows, deadline, stage, mut turn, answer, .. } = self;
        turn.begin();
        if answer.is_closed() {
            // The sender of the request has given up.
            return;
        }
        let begin = Instant::now();
        let left = deadline.saturating_duration_since(begin);
        let (predicted, margin) = stage.predict(rows, 0);
        let needed = predicted + margin + stage.rest();
        let result = if left.is_zero() || needed > left && !is_alone {
            Err(refused(&stage, Refusal::Delayed { needed, left }))
        } else {
            // A job changes nothing but values of its own, so a panic leaves nothing half done.
            let result = catch_unwind(AssertUnwindSafe(|| job(arena))).unwrap_or_else(|_| {
                tracing::error!("a transform or plan panicked");
                Err(Failure::new(Status::Failed, "the CPU half failed: see the worker's log"))
            });
            match &result {
                Ok(_) => {
                    turn.end();
                    stage.observe(rows, begin.elapsed());
                }
                Err(failure) if failure.status == Status::Full => stage.metrics.refuse(Reason::MemoryFull),
                Err(_) => {}
            }
            result
        };
        // It may have given up meanwhile.
        let _ = answer.send(result.map(|values| Done { values, ahead }));
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("rows", &self.rows).finish_non_exhaustive()
    }
}

fn refused(stage: &Stage, refusal: Refusal) -> Failure {
    stage.metrics.refuse(Reason::from(refusal));
    refusal.into()
}

#[cfg(test)]
mod tests;
