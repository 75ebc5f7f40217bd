//! Runs a load test: senders, the measured window, and the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use super::arrivals::Arrivals;
use super::connection::{Connection, Encoded};
use super::examples::{Example, read_examples};
use super::options::{LoadOptions, Pace, Plan};
use super::pacer::pace;
use super::recorder::Recorder;
use super::reply::{Reply, Verdict};
use super::report::LoadReport;
use super::target::Target;
use crate::cpu_time::cpu_time;
use crate::{Failure, Status};

/// How often a run looks whether it has been interrupted.
const LOOK: Duration = Duration::from_millis(100);
/// A request without an answer fails after this many times its SLO, but not before `PATIENCE_MIN`.
const PATIENCE_SLOS: u32 = 10;
const PATIENCE_MIN: Duration = Duration::from_secs(5);
/// Pause of a sender of a closed loop after a refusal or a failure. It doubles each time until there is an answer. Client
/// libraries of cloud services begin with 100 ms, too.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(800);

/// What all senders of a run share.
struct Run {
    target: Arc<Target>,
    requests: Vec<(Encoded, Example)>,
    check: Option<f64>,
    patience: Duration,
    start: Instant,
    /// Requests sent so far, which says whose turn it is.
    sent: AtomicUsize,
    recorder: Mutex<Recorder>,
}

/// Offer load to a server and measure. Asks one request first, whose failure ends the run.
///
/// # Errors
/// When an option is wrong, the server is not there or does not take the requests, or `interrupted` returns true, which is
/// asked ten times a second.
pub fn load(options: &LoadOptions, interrupted: &dyn Fn() -> bool) -> Result<LoadReport, Failure> {
    let target = Arc::new(Target::parse(&options.url, &options.model)?);
    let plan = options.plan()?;
    let examples = read_examples(&options.requests)?;
    if options.check.is_some()
        && let Some(number) = examples.iter().position(|example| example.outputs.is_empty())
    {
        return Err(Failure::invalid(format!(
            "--check compares answers, and request {number} of {} has no recorded answer",
            options.requests.display()
        )));
    }
    let timeout_us = u64::try_from(plan.slo.as_micros()).unwrap_or(u64::MAX);
    let requests =
        examples.into_iter().map(|example| (Encoded::new(&target, &example, timeout_us), example)).collect();
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(Status::Failed, format!("cannot start the network runtime: {error}"))
    })?;
    let mut run = Run {
        target,
        requests,
        check: options.check,
        patience: (plan.slo * PATIENCE_SLOS).max(PATIENCE_MIN),
        start: Instant::now(),
        sent: AtomicUsize::new(0),
        recorder: Mutex::new(Recorder::new(plan.window.clone(), plan.slo)),
    };
    runtime.block_on(async {
        tokio::select! {
            result = run.probe() => result?,
            failure = interruption(interrupted) => return Err(failure),
        }
        run.start = Instant::now();
        let run = Arc::new(run);
        let cpu = tokio::select! {
            cpu = measure(&run, options, &plan) => cpu?,
            failure = interruption(interrupted) => return Err(failure),
        };
        let empty = Recorder::new(plan.window.clone(), plan.slo);
        let recorder = std::mem::replace(&mut *run.recorder.lock(), empty);
        Ok(LoadReport::new(options, &plan.window, cpu, recorder))
    })
}

/// Ends when the run is interrupted.
async fn interruption(interrupted: &dyn Fn() -> bool) -> Failure {
    while !interrupted() {
        sleep(LOOK).await;
    }
    Failure::new(Status::Draining, "the run was interrupted")
}

/// Run all senders, and return the CPU time of the window.
async fn measure(run: &Arc<Run>, options: &LoadOptions, plan: &Plan) -> Result<Duration, Failure> {
    let window = &plan.window;
    let arrivals = match &options.pace {
        Pace::Senders(_) => None,
        Pace::Rate(rate) => Some(Arrivals::poisson(*rate, window.end, options.seed)),
        Pace::Trace(..) => Some(Arrivals::trace(plan.trace.clone(), window.end)),
    };
    let senders = async {
        match (arrivals, &options.pace) {
            (Some(arrivals), _) => open_loop(run, arrivals, options.connections).await,
            (None, Pace::Senders(senders)) => closed_loop(run, *senders, window.end).await,
            (None, _) => Ok(()),
        }
    };
    let cpu = async {
        sleep_until((run.start + window.start).into()).await;
        let before = cpu_time();
        sleep_until((run.start + window.end).into()).await;
        cpu_time().saturating_sub(before)
    };
    let (result, cpu) = tokio::join!(senders, cpu);
    result.map(|()| cpu)
}

async fn closed_loop(run: &Arc<Run>, senders: usize, end: Duration) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for _ in 0..senders {
        let run = Arc::clone(run);
        tasks.spawn(async move {
            let mut connection = Connection::new(Arc::clone(&run.target));
            let mut pause = PAUSE_MIN;
            loop {
                let at = run.start.elapsed();
                if at >= end {
                    return;
                }
                match run.send(&mut connection, at).await {
                    Verdict::Answered => pause = PAUSE_MIN,
                    Verdict::Refused | Verdict::Expired | Verdict::Failed => {
                        sleep(pause).await;
                        pause = (2 * pause).min(PAUSE_MAX);
                    }
                }
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}

async fn open_loop(run: &Arc<Run>, arrivals: Arrivals, connections_max: usize) -> Result<(), Failure> {
    let mut due = pace(run.start, arrivals)
        .map_err(|error| Failure::new(Status::Failed, format!("cannot start a thread: {error}")))?;
    // Connections without a request. The last one used is taken first, so that few stay in use at low load.
    let idle = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    while let Some(at) = due.recv().await {
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("a sender does not panic");
        }
        if tasks.len() == connections_max {
            run.recorder.lock().not_sent(at);
            continue;
        }
        let (run, idle) = (Arc::clone(run), Arc::clone(&idle));
        tasks.spawn(async move {
            let found = idle.lock().pop();
            let mut connection = found.unwrap_or_else(|| Connection::new(Arc::clone(&run.target)));
            run.send(&mut connection, at).await;
            idle.lock().push(connection);
        });
    }
    tasks.join_all().await;
    Ok(())
}

impl Run {
    /// Send the request whose turn it is, which was due `at`, and count how it ends.
    async fn send(&self, connection: &mut Connection, at: Duration) -> Verdict {
        let number = self.sent.fetch_add(1, Relaxed) % self.requests.len();
        let (request, example) = &self.requests[number];
        let lag = self.start.elapsed().saturating_sub(at);
        let reply = self.ask(connection, request).await;
        let ended = self.start.elapsed();
        let recorded = self.check.map(|tolerance| (&example.outputs[..], tolerance));
        self.recorder.lock().ended(at, lag, ended, request.body.len(), &reply, recorded);
        reply.verdict
    }

    async fn ask(&self, connection: &mut Connection, request: &Encoded) -> Reply {
        let answered = timeout(self.patience, connection.ask(request, self.check.is_some())).await;
        answered
            .unwrap_or_else(|_| Reply::failed("unanswered", &format!("no answer within {:?}", self.patience)))
    }

    /// Whether the server takes the requests. Refusals because of its load are no reason not to measure it.
    async fn probe(&self) -> Result<(), Failure> {
        let (request, _) = &self.requests[0];
        let reply = self.ask(&mut Connection::new(Arc::clone(&self.target)), request).await;
        match reply.verdict {
            Verdict::Failed => Err(Failure::new(
                Status::Failed,
                format!(
                    "the first request to model {:?} at {} failed ({}): {}",
                    self.target.model, self.target.authority, reply.status, reply.text
                ),
            )),
            _ => Ok(()),
        }
    }
}
