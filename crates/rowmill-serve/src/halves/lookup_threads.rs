//! A fixed number of threads that run transforms and plans, each a whole request at a time, in the order of arrival.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::stage::Stage;
use crate::metrics::{Reason, Turn};
use crate::plan::Values;
use crate::{Arena, Failure, Refusal, Status};

/// Threads that run transforms and plans. They end when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct LookupThreads(Arc<Owner>);

#[derive(Debug)]
struct Owner(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    threads: usize,
    queue_max: usize,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Work>,
    running: usize,
    /// Predicted time of all jobs that wait or run.
    backlog: Duration,
    is_closed: bool,
}

type Job = Box<dyn FnOnce(&Arena) -> Result<Values, Failure> + Send>;

/// A job and its request.
struct Work {
    job: Job,
    rows: u32,
    deadline: Instant,
    stage: Arc<Stage>,
    predicted: Duration,
    turn: Turn,
    answer: oneshot::Sender<Result<Values, Failure>>,
}

/// What a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A new request: refused at once where its answer is predicted to be late.
    First,
    /// A request that the dense half has answered: it goes before all that wait.
    Last,
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

    /// The values that `job` makes for a request of `rows`. It changes nothing outside of itself.
    ///
    /// # Errors
    /// When the job fails, the request is predicted to be late, or too many wait.
    pub(super) async fn run(
        &self,
        part: Part,
        stage: &Arc<Stage>,
        rows: u32,
        deadline: Instant,
        job: impl FnOnce(&Arena) -> Result<Values, Failure> + Send + 'static,
    ) -> Result<Values, Failure> {
        let (answer, result) = oneshot::channel();
        let (turn, stage, job) = (stage.metrics.queue(), Arc::clone(stage), Box::new(job));
        let predicted = Duration::ZERO;
        self.0.0.submit(part, Work { job, rows, deadline, stage, predicted, turn, answer })?;
        result.await.unwrap_or_else(|_| Err(Failure::new(Status::Failed, "the lookup threads ended")))
    }

    /// Refuse a new request of `rows` as [`Self::run`] would now.
    ///
    /// # Errors
    /// When the request is predicted to be late, or too many wait.
    pub(super) fn check(&self, stage: &Stage, rows: u32, deadline: Instant) -> Result<(), Failure> {
        let shared = &self.0.0;
        shared.admit(&shared.state.lock(), Part::First, stage, rows, deadline).map(drop)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn submit(&self, part: Part, mut work: Work) -> Result<(), Failure> {
        let mut state = self.state.lock();
        work.predicted = self.admit(&state, part, &work.stage, work.rows, work.deadline)?;
        state.backlog += work.predicted;
        match part {
            Part::First => state.queue.push_back(work),
            Part::Last => state.queue.push_front(work),
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The predicted time of a job, unless it is refused.
    fn admit(
        &self,
        state: &State,
        part: Part,
        stage: &Stage,
        rows: u32,
        deadline: Instant,
    ) -> Result<Duration, Failure> {
        let queued = state.queue.len();
        if queued >= self.queue_max {
            return Err(refused(stage, Refusal::Full { queued }));
        }
        let ahead = (queued + state.running) / self.threads;
        let (predicted, margin) = stage.predict(rows, ahead);
        // With no one ahead the job runs: nothing else could correct a prediction that is too long.
        if part == Part::First && queued + state.running > 0 {
            let wait = state.backlog / self.threads as u32;
            let needed = wait + predicted + margin + stage.rest();
            let left = deadline.saturating_duration_since(Instant::now());
            if needed > left {
                return Err(refused(stage, Refusal::Late { needed, left, queued }));
            }
        }
        Ok(predicted)
    }

    /// The life of a thread.
    fn run(&self, arena: &Arena) {
        let mut state = self.state.lock();
        loop {
            let Some(work) = state.queue.pop_front() else {
                if state.is_closed {
                    return;
                }
                self.changed.wait(&mut state);
                continue;
            };
            let is_alone = state.queue.is_empty() && state.running == 0;
            state.running += 1;
            drop(state);
            let predicted = work.predicted;
            work.run(arena, is_alone);
            state = self.state.lock();
            state.running -= 1;
            state.backlog = state.backlog.saturating_sub(predicted);
        }
    }
}

impl Work {
    fn run(self, arena: &Arena, is_alone: bool) {
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
        let _ = answer.send(result);
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

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    struct Fixture {
        threads: LookupThreads,
        stage: Arc<Stage>,
        runtime: tokio::runtime::Runtime,
    }

    type Answer = tokio::task::JoinHandle<Result<Values, Failure>>;

    impl Fixture {
        fn new(threads: usize, queue_max: usize) -> Self {
            let arena = Arena::new(1 << 20).unwrap();
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
            let threads = LookupThreads::start(threads, queue_max, &arena).unwrap();
            Self { threads, stage: Stage::new(&Arc::default()), runtime }
        }

        /// Ask for a job; returns once it was queued or refused.
        fn ask(&self, part: Part, left: Duration, job: impl FnOnce() + Send + 'static) -> Answer {
            let (threads, stage) = (self.threads.clone(), Arc::clone(&self.stage));
            let before = threads.0.0.state.lock().queue.len();
            let deadline = Instant::now() + left;
            let asked = self.runtime.spawn(async move {
                threads.run(part, &stage, 1, deadline, |_: &Arena| Ok((job(), Values::new()).1)).await
            });
            while !asked.is_finished() && self.threads.0.0.state.lock().queue.len() == before {
                std::thread::yield_now();
            }
            asked
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
                threads.run(Part::First, &stage, 1, Instant::now() + LONG, job).await
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
    fn the_last_part_of_a_request_runs_before_the_first_of_others() {
        let fixture = Fixture::new(1, 10);
        let (release, blocked) = fixture.block();
        let (sender, order) = mpsc::channel();
        let answers: Vec<_> = [(Part::First, 1), (Part::First, 2), (Part::Last, 3)]
            .map(|(part, number)| {
                let sender = sender.clone();
                fixture.ask(part, LONG, move || sender.send(number).unwrap())
            })
            .into();
        release.send(()).unwrap();
        answers.into_iter().chain([blocked]).for_each(|answer| fixture.status(answer).unwrap());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [3, 1, 2]);
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
        for threads in [1, 2, 8, 16] {
            let fixture = Fixture::new(threads, 1000);
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
                        threads.run(Part::First, &stage, 1, Instant::now() + LONG, job).await
                    })
                })
                .collect();
            for answer in answers {
                fixture.status(answer).unwrap();
            }
            assert_eq!(ran.load(std::sync::atomic::Ordering::SeqCst), 200);
            fixture.until_idle();
            assert_eq!(fixture.threads.0.0.state.lock().backlog, Duration::ZERO);
        }
    }
}
