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
mod tests {
    use std::sync::mpsc;

    use super::super::Program;
    use super::*;
    use crate::BatchLimits;
    use crate::metrics::HalfMetrics;

    const LONG: Duration = Duration::from_mins(1);

    struct Fixture {
        threads: LookupThreads,
        stage: Arc<Stage>,
        runtime: tokio::runtime::Runtime,
        window: Option<Arc<Window>>,
    }

    type Answer = tokio::task::JoinHandle<Result<Done, Failure>>;

    impl Fixture {
        fn new(threads: usize, queue_max: usize) -> Self {
            let arena = Arena::new(1 << 20).unwrap();
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
            let threads = LookupThreads::start(threads, queue_max, &arena).unwrap();
            Self { threads, stage: Stage::new(&Arc::default()), runtime, window: None }
        }

        /// Ask for a job; returns once it was queued or refused.
        fn ask(&self, part: Part, left: Duration, job: impl FnOnce() + Send + 'static) -> Answer {
            let (threads, stage, window) = (
                self.threads.clone(),
                Arc::clone(&self.stage),
                self.window.clone().filter(|_| part == Part::First),
            );
            let before = threads.0.0.state.lock().queue.len();
            let deadline = Instant::now() + left;
            let asked = self.runtime.spawn(async move {
                threads
                    .run(part, &stage, window.as_ref(), 1, deadline, |_: &Arena| Ok((job(), Values::new()).1))
                    .await
            });
            while !asked.is_finished() && self.threads.0.0.state.lock().queue.len() == before {
                std::thread::yield_now();
            }
            asked
        }

        /// Give requests a window, and close it until the result is dropped.
        fn close_window(&mut self) -> Vec<Ahead> {
            let limits = BatchLimits {
                batch_requests_max: 1,
                batch_rows_max: 64,
                queue_requests_max: 10,
                batches_max: 1,
            };
            let dense = Program::new(limits, None, &Arc::default());
            self.window = Some(Window::new(dense, self.threads.count()));
            let ahead = (0..self.threads.count()).map(|_| {
                let done = self.runtime.block_on(self.ask(Part::First, LONG, || ())).unwrap().unwrap();
                done.ahead.unwrap()
            });
            let ahead = ahead.collect();
            self.until_idle();
            ahead
        }

        /// A job that runs until the sender is used, and waits for its start.
        fn block(&self) -> (mpsc::Sender<()>, Answer) {
            let ((release, released), (begin, begun)) = (mpsc::channel(), mpsc::channel());
            let (threads, stage) = (self.threads.clone(), Arc::clone(&self.stage));
            let asked = self.runtime.spawn(async move {
                let job = move |_: &Arena| {
                    begin.send(()).unwrap();
                    released.recv().unwrap();
                    Ok(Values::new())
                };
                threads.run(Part::First, &stage, None, 1, Instant::now() + LONG, job).await
            });
            begun.recv().unwrap();
            (release, asked)
        }

        /// Wait until no job runs: a thread answers before it takes its job off the books.
        fn until_idle(&self) {
            while self.threads.0.0.state.lock().running > 0 {
                std::thread::yield_now();
            }
        }

        fn status(&self, answer: Answer) -> Result<(), (Status, String)> {
            let answer = self.runtime.block_on(answer).unwrap();
            answer.map(drop).map_err(|failure| (failure.status, failure.text))
        }
    }

    #[test]
    fn last_parts_run_before_first_parts_and_those_by_their_deadlines() {
        let fixture = Fixture::new(1, 10);
        let (release, blocked) = fixture.block();
        let (sender, order) = mpsc::channel();
        let answers: Vec<_> = [(Part::First, 3), (Part::First, 1), (Part::First, 2), (Part::Last, 4)]
            .map(|(part, number)| {
                let sender = sender.clone();
                fixture.ask(part, LONG * number, move || sender.send(number).unwrap())
            })
            .into();
        release.send(()).unwrap();
        answers.into_iter().chain([blocked]).for_each(|answer| fixture.status(answer).unwrap());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [4, 1, 2, 3]);
    }

    #[test]
    fn a_closed_window_holds_back_its_own_requests_alone() {
        let mut fixture = Fixture::new(2, 10);
        let ahead = fixture.close_window();
        let (sender, ran) = mpsc::channel();
        let ask = |fixture: &Fixture, left: Duration, number: u32| {
            let sender = sender.clone();
            fixture.ask(Part::First, left, move || sender.send(number).unwrap())
        };
        let held = ask(&fixture, LONG * 2, 1);
        // Neither a request that the dense half runs earlier, nor one of another model, waits for the window.
        let earlier = ask(&fixture, LONG / 2, 2);
        fixture.status(earlier).unwrap();
        fixture.window = None;
        let other = ask(&fixture, LONG * 2, 3);
        fixture.status(other).unwrap();
        assert!(!held.is_finished());
        drop(ahead);
        fixture.status(held).unwrap();
        assert_eq!(ran.try_iter().collect::<Vec<_>>(), [2, 3, 1]);
    }

    #[test]
    fn a_window_holds_a_batch_for_each_that_may_run_at_once_now() {
        let mut fixture = Fixture::new(1, 10);
        let limits =
            BatchLimits { batch_requests_max: 3, batch_rows_max: 64, queue_requests_max: 10, batches_max: 2 };
        let metrics = Arc::new(HalfMetrics::default());
        let window = Window::new(Program::new(limits, None, &metrics), 1);
        fixture.window = Some(Arc::clone(&window));
        for (batches, requests) in [(2, 6), (1, 3)] {
            metrics.set_batches(batches);
            let mut ahead = Vec::new();
            while window.is_open(Instant::now() + LONG * 2) {
                let done = fixture.runtime.block_on(fixture.ask(Part::First, LONG, || ())).unwrap().unwrap();
                ahead.push(done.ahead);
                fixture.until_idle();
            }
            assert_eq!(ahead.len(), requests);
        }
    }

    #[test]
    fn requests_held_back_make_no_other_late_and_fill_no_other_queue() {
        let mut fixture = Fixture::new(1, 3);
        let ahead = fixture.close_window();
        (0..20).for_each(|_| fixture.stage.observe(1, Duration::from_millis(100)));
        let held: Vec<_> = (0..3).map(|_| fixture.ask(Part::First, LONG * 2, || ())).collect();
        let (status, text) = fixture.status(fixture.ask(Part::First, LONG * 3, || ())).unwrap_err();
        assert_eq!(status, Status::Full);
        assert!(text.contains("3 requests wait already"), "{text}");
        let last = fixture.ask(Part::Last, LONG, || ());
        fixture.status(last).expect("a request that the dense half has answered is not refused");
        fixture.until_idle();
        // Another model, whose time is predicted to be as long.
        let window = fixture.window.take();
        let stage = std::mem::replace(&mut fixture.stage, Stage::new(&Arc::default()));
        (0..20).for_each(|_| fixture.stage.observe(1, Duration::from_millis(100)));
        let other = fixture.ask(Part::First, Duration::from_millis(50), || ());
        fixture.status(other).expect("an idle thread runs what is predicted to be late");
        fixture.until_idle();
        (fixture.window, fixture.stage) = (window, stage);
        let withdrawn = held.into_iter().next().unwrap();
        withdrawn.abort();
        assert!(fixture.runtime.block_on(withdrawn).unwrap_err().is_cancelled());
        assert_eq!(fixture.threads.0.0.state.lock().queue.len(), 2);
        let earlier = fixture.ask(Part::First, Duration::from_millis(250), || ());
        fixture.status(earlier).expect("it runs before those that are held back");
        drop(ahead);
    }

    #[test]
    fn a_limit_holds_jobs_back_until_one_ends_or_it_is_raised_or_over() {
        let fixture = Fixture::new(3, 10);
        let limit = fixture.threads.limit();
        limit.set(Some(1));
        let (release, blocked) = fixture.block();
        let ask = || {
            let (sender, ran) = mpsc::channel();
            (fixture.ask(Part::First, LONG, move || sender.send(()).unwrap()), ran)
        };
        let is_held = |ran: &mpsc::Receiver<()>| ran.recv_timeout(Duration::from_millis(20)).is_err();
        let (first, ran) = ask();
        assert!(is_held(&ran));
        release.send(()).unwrap();
        fixture.status(first).unwrap();
        fixture.status(blocked).unwrap();

        let (release, blocked) = fixture.block();
        let (second, ran) = ask();
        assert!(is_held(&ran));
        limit.set(Some(2));
        fixture.status(second).unwrap();
        limit.set(Some(1));
        let (third, ran) = ask();
        assert!(is_held(&ran));
        limit.set(None);
        fixture.status(third).unwrap();
        limit.set(Some(1));
        fixture.threads.0.0.state.lock().limit = Some((1, Instant::now()));
        fixture.status(ask().0).unwrap();
        release.send(()).unwrap();
        fixture.status(blocked).unwrap();
    }

    #[test]
    fn a_request_that_would_be_late_is_refused_on_arrival() {
        let fixture = Fixture::new(2, 10);
        (0..20).for_each(|_| fixture.stage.observe(1, Duration::from_millis(100)));
        fixture.stage.observe_rest(Duration::from_millis(50));
        let blocks: Vec<_> = (0..2).map(|_| fixture.block()).collect();
        // 200 ms run on two threads, then 100 ms of its own and a rest of 50 ms.
        let (status, text) =
            fixture.status(fixture.ask(Part::First, Duration::from_millis(240), || ())).unwrap_err();
        assert_eq!(status, Status::Late);
        assert!(text.contains("its reply would take 250ms") && text.contains("behind 0 requests"), "{text}");
        let admitted = fixture.ask(Part::First, LONG, || ());
        assert_eq!(fixture.stage.metrics.refused(Reason::Late), 1);
        for (release, answer) in blocks {
            release.send(()).unwrap();
            fixture.status(answer).unwrap();
        }
        fixture.status(admitted).unwrap();
        fixture.until_idle();
        let idle = fixture.ask(Part::First, Duration::from_millis(50), || ());
        fixture.status(idle).expect("an idle thread runs what is predicted to be late");
    }

    #[test]
    fn a_request_that_waited_too_long_is_refused_and_its_job_does_not_run() {
        let fixture = Fixture::new(1, 10);
        let (release, blocked) = fixture.block();
        let late = fixture.ask(Part::First, Duration::from_millis(5), || panic!("it runs"));
        std::thread::sleep(Duration::from_millis(10));
        release.send(()).unwrap();
        assert_eq!(fixture.status(late).unwrap_err().0, Status::Late);
        fixture.status(blocked).unwrap();
        assert_eq!(fixture.stage.metrics.refused(Reason::Delayed), 1);
    }

    #[test]
    fn the_job_of_a_sender_that_has_given_up_does_not_run() {
        let fixture = Fixture::new(1, 10);
        let (release, blocked) = fixture.block();
        let given_up = fixture.ask(Part::First, LONG, || panic!("it runs"));
        given_up.abort();
        assert!(fixture.runtime.block_on(given_up).unwrap_err().is_cancelled());
        release.send(()).unwrap();
        fixture.status(blocked).unwrap();
        fixture.status(fixture.ask(Part::First, LONG, || ())).unwrap();
        fixture.until_idle();
        assert_eq!(fixture.stage.metrics.run.count(), 2);
    }

    #[test]
    fn the_queue_has_a_bound_and_a_panic_fails_its_request_alone() {
        let fixture = Fixture::new(1, 1);
        let (release, blocked) = fixture.block();
        let panics = fixture.ask(Part::First, LONG, || panic!("a bug"));
        let (status, text) = fixture.status(fixture.ask(Part::First, LONG, || ())).unwrap_err();
        assert_eq!(status, Status::Full);
        assert!(text.contains("1 requests wait already"), "{text}");
        release.send(()).unwrap();
        fixture.status(blocked).unwrap();
        assert_eq!(fixture.status(panics).unwrap_err().0, Status::Failed);
        fixture.status(fixture.ask(Part::First, LONG, || ())).unwrap();
    }

    #[test]
    fn every_job_runs_once_on_any_number_of_threads() {
        for (threads, at_once) in [(1, None), (2, Some(1)), (8, None), (16, Some(3)), (16, Some(20))] {
            let fixture = Fixture::new(threads, 1000);
            fixture.threads.limit().set(at_once);
            let ran = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let answers: Vec<_> = (0..200)
                .map(|_| {
                    let ran = Arc::clone(&ran);
                    let job = move || {
                        ran.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    };
                    let (threads, stage) = (fixture.threads.clone(), Arc::clone(&fixture.stage));
                    fixture.runtime.spawn(async move {
                        let job = move |_: &Arena| Ok((job(), Values::new()).1);
                        threads.run(Part::First, &stage, None, 1, Instant::now() + LONG, job).await
                    })
                })
                .collect();
            for answer in answers {
                fixture.status(answer).unwrap();
            }
            assert_eq!(ran.load(std::sync::atomic::Ordering::SeqCst), 200);
            fixture.until_idle();
            assert_eq!(fixture.threads.0.0.state.lock().running_time, Duration::ZERO);
        }
    }
}
