//! A fork-join pool without work stealing.
//!
//! A caller posts a job of numbered tasks and runs them itself; idle threads of the pool join it. When no
//! task is left, the caller waits for the threads that still run one. It runs nothing else meanwhile: a pool
//! with work stealing would run other callers' tasks there, and these may want a lock that the waiting caller
//! holds.
//!
//! A task may post a job of its own and then waits only for the tasks of that job. Waiting jobs therefore
//! form a tree, and the innermost job always progresses. Loom model-checks the protocol below.

#[cfg(loom)]
use loom::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};
use std::any::Any;
use std::io;
#[cfg(not(loom))]
use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use crate::rank::Inherited;

/// Threads that join the callers of [`Pool::for_each`].
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Idle threads wait here for a job.
    posted: Condvar,
    /// Most threads to wake for one job.
    wakes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Posted>,
    /// Number of threads that wait for a job.
    idle: usize,
    ending: bool,
}

/// A job whose caller has not withdrawn it yet.
#[derive(Debug)]
struct Posted {
    job: *const Job<'static>,
    /// Number of pool threads that run its tasks.
    helpers: usize,
}

// SAFETY: only threads counted in `helpers` dereference the pointer. The caller keeps the job alive until
// that count is zero and the entry is removed.
unsafe impl Send for Posted {}

/// Numbered tasks. Lives on the stack of its caller.
struct Job<'a> {
    work: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
    /// Number of the next task.
    next: AtomicUsize,
    /// The caller waits here for its helpers to leave.
    left: Condvar,
    /// Payload of the first panic of a task.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    locks: Inherited,
}

impl Job<'_> {
    fn has_tasks(&self) -> bool {
        self.next.load(Relaxed) < self.tasks
    }

    /// Run tasks until none is left. A panic of one ends the job; the caller resumes it.
    fn run(&self) {
        let tasks = || {
            loop {
                let task = self.next.fetch_add(1, Relaxed);
                if task >= self.tasks {
                    break;
                }
                (self.work)(task);
            }
        };
        if let Err(panic) = caught(tasks) {
            self.next.store(self.tasks, Relaxed);
            lock(&self.panic).get_or_insert(panic);
        }
    }
}

impl Pool {
    /// A pool in which `threads` threads share the work of one caller. It starts `threads - 1` threads; the
    /// caller is the other one.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    ///
    /// # Panics
    /// When `threads` is 0.
    pub fn new(threads: usize) -> io::Result<Self> {
        assert!(threads > 0, "threads must be at least 1: the caller counts as one");
        let shared =
            Shared { state: Mutex::default(), posted: Condvar::new(), wakes_max: wakes_max(threads) };
        let mut pool = Self { shared: Arc::new(shared), threads: Vec::new() };
        for number in 1..threads {
            let shared = Arc::clone(&pool.shared);
            pool.threads.push(spawn(number, move || shared.help())?);
        }
        Ok(pool)
    }

    /// Number of threads that may share the work of one caller, including the caller.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Run `work` once for every number in `[0, tasks)`, on this thread and idle threads of the pool.
    ///
    /// # Panics
    /// Resumes the panic of a task, after all threads have left the job.
    pub fn for_each(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.threads.is_empty() {
            (0..tasks).for_each(work);
            return;
        }
        let job = Job {
            work: &work,
            tasks,
            next: AtomicUsize::new(0),
            left: Condvar::new(),
            panic: Mutex::new(None),
            locks: Inherited::of_this_thread(),
        };
        self.shared.post(&job);
        job.run();
        self.shared.withdraw(&job);
        if let Some(panic) = lock(&job.panic).take() {
            std::panic::resume_unwind(panic);
        }
    }

    /// Results of `work` for every number in `[0, tasks)`, in order.
    ///
    /// # Panics
    /// As [`Pool::for_each`].
    pub fn map<T: Send>(&self, tasks: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let mut results: Vec<Option<T>> = (0..tasks).map(|_| None).collect();
        let slots = Slots(results.as_mut_ptr());
        self.for_each(tasks, |task| {
            let result = work(task);
            // SAFETY: `task` is below the number of results, and every task has its own number.
            unsafe { *slots.at(task) = Some(result) };
        });
        results.into_iter().map(|result| result.expect("every task has run")).collect()
    }

    /// Run `work` once for every item.
    ///
    /// # Panics
    /// As [`Pool::for_each`].
    pub fn for_each_mut<T: Send>(&self, items: &mut [T], work: impl Fn(&mut T) + Sync) {
        let slots = Slots(items.as_mut_ptr());
        // SAFETY: `task` is below the number of items, and every task has its own number.
        self.for_each(items.len(), |task| work(unsafe { &mut *slots.at(task) }));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).ending = true;
        self.shared.posted.notify_all();
        for thread in self.threads.drain(..) {
            // Panics of tasks were already resumed in their callers.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Offer a job to the idle threads.
    fn post(&self, job: &Job<'_>) {
        let wanted = job.tasks - 1;
        let mut state = lock(&self.state);
        state.jobs.push(Posted { job: std::ptr::from_ref(job).cast(), helpers: 0 });
        let woken = state.idle.min(wanted).min(self.wakes_max);
        drop(state);
        for _ in 0..woken {
            self.posted.notify_one();
        }
    }

    /// Remove the job once no thread runs its tasks. All tasks have been taken, so no further thread joins
    /// it.
    fn withdraw(&self, job: &Job<'_>) {
        let mut state = lock(&self.state);
        loop {
            let index = state.index_of(std::ptr::from_ref(job).cast());
            if state.jobs[index].helpers == 0 {
                state.jobs.swap_remove(index);
                return;
            }
            state = wait(&job.left, state);
        }
    }

    /// Main loop of a pool thread.
    fn help(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.join() {
                drop(state);
                // SAFETY: the caller keeps the job alive while this thread is counted in its `helpers`.
                let job_ref = unsafe { &*job };
                job_ref.locks.run(|| job_ref.run());
                state = lock(&self.state);
                if state.leave(job) {
                    // Notify under the lock: the caller must not drop the job before this call.
                    job_ref.left.notify_one();
                }
            } else if state.ending {
                return;
            } else {
                state.idle += 1;
                state = wait(&self.posted, state);
                state.idle -= 1;
            }
        }
    }
}

impl State {
    fn index_of(&self, job: *const Job<'static>) -> usize {
        self.jobs
            .iter()
            .position(|posted| posted.job == job)
            .expect("a job stays posted until its caller withdraws it")
    }

    /// Join the job with the fewest helpers among those that have tasks left.
    fn join(&mut self) -> Option<*const Job<'static>> {
        // SAFETY: a posted job lives at least until it is withdrawn, which takes the lock that guards `self`.
        let waiting = self.jobs.iter_mut().filter(|posted| unsafe { &*posted.job }.has_tasks());
        let posted = waiting.min_by_key(|posted| posted.helpers)?;
        posted.helpers += 1;
        Some(posted.job)
    }

    /// Leave a job; returns whether this thread was its last helper.
    fn leave(&mut self, job: *const Job<'static>) -> bool {
        let index = self.index_of(job);
        self.jobs[index].helpers -= 1;
        self.jobs[index].helpers == 0
    }
}

/// Number of threads to wake for one job, in a pool in which `threads` threads share the work of a caller.
///
/// A thread without a core of its own delays the job: it may be preempted in a task that the caller waits
/// for. Waking eight threads on two cores cost a fifth of the speed. Builds with `debug_assertions` wake all
/// threads, so that tests reach event orders that a small number of cores would hide.
fn wakes_max(threads: usize) -> usize {
    if cfg!(debug_assertions) {
        return threads - 1;
    }
    let cores = std::thread::available_parallelism().map_or(threads, usize::from);
    threads.min(cores) - 1
}

/// A slice in which every task accesses a different item.
struct Slots<T>(*mut T);

// SAFETY: a task accesses only the item of its own number, and items are `Send`.
unsafe impl<T: Send> Sync for Slots<T> {}

impl<T> Slots<T> {
    /// # Safety
    /// `index` is below the number of items.
    unsafe fn at(&self, index: usize) -> *mut T {
        // SAFETY: `index` is in bounds, as the caller guarantees.
        unsafe { self.0.add(index) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("the pool's locks are never poisoned: no task runs under them")
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).expect("the pool's locks are never poisoned: no task runs under them")
}

#[cfg(not(loom))]
fn caught(work: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
}

/// Loom ends an execution by a panic, which must not be caught.
#[cfg(loom)]
fn caught(work: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
    work();
    Ok(())
}

#[cfg(not(loom))]
fn spawn(number: usize, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(format!("rowmill-worker-{number}")).spawn(work)
}

#[cfg(loom)]
fn spawn(_: usize, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Ok(thread::spawn(work))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn every_task_runs_once_and_results_keep_their_order() {
        for threads in [1, 2, 3, 8, 16] {
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let squares = pool.map(tasks, |task| task * task);
                assert!(squares.into_iter().eq((0..tasks).map(|task| task * task)));
                let mut items = vec![1_u32; tasks];
                pool.for_each_mut(&mut items, |item| *item += 1);
                assert!(items.iter().all(|&item| item == 2));
            }
        }
    }

    #[test]
    fn tasks_of_many_callers_that_fork_themselves_all_run() {
        let (pool, sum) = (Pool::new(4).unwrap(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.for_each(5, |_| {
                            pool.for_each(7, |task| {
                                sum.fetch_add(task as u64, Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 6 * 200 * 5 * 21);
    }

    /// A waiting caller that holds a lock must not run another caller's task that wants the same lock.
    #[test]
    fn a_caller_that_waits_runs_nothing_else() {
        let (pool, shared) = (Pool::new(4).unwrap(), std::sync::RwLock::new(0_u64));
        std::thread::scope(|scope| {
            for caller in 0..4 {
                let (pool, shared) = (&pool, &shared);
                scope.spawn(move || {
                    for _ in 0..500 {
                        if caller % 2 == 0 {
                            let _held = shared.read().unwrap();
                            pool.for_each(8, |_| std::hint::spin_loop());
                        } else {
                            pool.for_each(8, |_| *shared.write().unwrap() += 1);
                        }
                    }
                });
            }
        });
        assert_eq!(shared.into_inner().unwrap(), 2 * 500 * 8);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_keeps_working() {
        let pool = Pool::new(3).unwrap();
        for wrong in [0, 17, 99] {
            let failed = caught(|| pool.for_each(100, |task| assert_ne!(task, wrong, "a wrong task")));
            let message = failed.expect_err("the panic is passed on");
            assert!(message.downcast_ref::<String>().expect("a message").contains("a wrong task"));
            assert_eq!(pool.map(3, |task| task), [0, 1, 2]);
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;

    /// A lost wake-up, a job that ends too early, or a task that runs twice fails or deadlocks in some
    /// execution.
    fn check(callers: usize, tasks: usize) {
        loom::model(move || {
            let pool = Arc::new(Pool::new(2).unwrap());
            let ran = Arc::new(AtomicUsize::new(0));
            let call = move |pool: &Pool, ran: &AtomicUsize| {
                let runs: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(tasks, |task| {
                    runs[task].fetch_add(1, Relaxed);
                    ran.fetch_add(1, Relaxed);
                });
                assert!(runs.iter().all(|runs| runs.load(Relaxed) == 1), "a task ran twice or not at all");
            };
            let others: Vec<_> = (1..callers)
                .map(|_| {
                    let (pool, ran) = (Arc::clone(&pool), Arc::clone(&ran));
                    thread::spawn(move || call(&pool, &ran))
                })
                .collect();
            call(&pool, &ran);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(ran.load(Relaxed), callers * tasks);
        });
    }

    #[test]
    fn one_caller_and_one_helper() {
        check(1, 3);
    }

    #[test]
    fn two_callers_share_one_helper() {
        check(2, 2);
    }

    #[test]
    fn a_task_that_forks() {
        loom::model(|| {
            let pool = Pool::new(2).unwrap();
            let ran = AtomicUsize::new(0);
            pool.for_each(2, |_| pool.for_each(2, |_| _ = ran.fetch_add(1, Relaxed)));
            assert_eq!(ran.load(Relaxed), 4);
        });
    }
}
