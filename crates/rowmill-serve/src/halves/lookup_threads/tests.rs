//! The order of jobs, windows, limits and refusals, on real threads.

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
        let limits =
            BatchLimits { batch_requests_max: 1, batch_rows_max: 64, queue_requests_max: 10, batches_max: 1 };
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
