//! Threads that make the results of stage commands. Jobs that wait for one group go into one call of the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::job::{Job, Pooled};
use crate::fault::Fault;

/// Most bytes of results and ids of one call, besides its first job.
const CALL_BYTES_MAX: u64 = 4 << 20;

/// Takes the result of a job.
pub(crate) type Deliver = Box<dyn FnOnce(Result<Pooled, Fault>) + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<(Job, Deliver)>,
    is_closed: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// A job has come, or the end.
    changed: Condvar,
}

/// The threads, which end when this is dropped. Jobs are bounded by the memory of staged results.
pub(crate) struct PoolingThreads {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl PoolingThreads {
    pub(crate) fn start(count: usize) -> std::io::Result<PoolingThreads> {
        let mut started = PoolingThreads { queue: Arc::default(), threads: Vec::with_capacity(count) };
        for number in 0..count {
            let queue = Arc::clone(&started.queue);
            let builder = std::thread::Builder::new().name(format!("rowmill-pooling-{number}"));
            started.threads.push(builder.spawn(move || while queue.serve() {})?);
        }
        Ok(started)
    }

    /// Run a job when a thread is free. `deliver` is called by the thread, and must not wait.
    pub(crate) fn run(&self, job: Job, deliver: Deliver) {
        self.queue.state.lock().jobs.push_back((job, deliver));
        self.queue.changed.notify_one();
    }
}

impl std::fmt::Debug for PoolingThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolingThreads({})", self.threads.len())
    }
}

impl Drop for PoolingThreads {
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Queue {
    /// Serve the jobs that wait for one group. False at the end.
    fn serve(&self) -> bool {
        let Some(taken) = self.take() else { return false };
        let (jobs, deliveries): (Vec<Job>, Vec<Deliver>) = taken.into_iter().unzip();
        // A failure of one must not fail the others.
        let results = match Job::run(&jobs.iter().collect::<Vec<_>>()) {
            Ok(results) => results.into_iter().map(|bytes| Ok(Pooled::whole(bytes))).collect(),
            Err(_) => jobs.iter().map(Job::run_alone).collect::<Vec<_>>(),
        };
        for (deliver, result) in deliveries.into_iter().zip(results) {
            deliver(result);
        }
        true
    }

    fn take(&self) -> Option<Vec<(Job, Deliver)>> {
        let mut state = self.state.lock();
        let first = loop {
            if let Some(first) = state.jobs.pop_front() {
                break first;
            }
            if state.is_closed {
                return None;
            }
            self.changed.wait(&mut state);
        };
        let mut bytes = 0;
        let mut taken = vec![first];
        let mut rest = VecDeque::with_capacity(state.jobs.len());
        for entry in state.jobs.drain(..) {
            let more = entry.0.bytes();
            if taken[0].0.joins(&entry.0) && bytes + more <= CALL_BYTES_MAX {
                bytes += more;
                taken.push(entry);
            } else {
                rest.push_back(entry);
            }
        }
        state.jobs = rest;
        Some(taken)
    }
}
