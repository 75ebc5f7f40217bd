//! Which cores the threads of this process run on: batches on some, all other threads on the rest.
//!
//! Without that, the thread that runs batches was seen to wait for a core for up to 23 % of the time, while cores were idle for
//! 20 %, and a backlog stayed (decision 0021).

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::cpu_time::{cpu_time, cpu_time_of_cores};

/// Threads are bound while this process uses at least this part of a core, and other processes less: then no two workers on one
/// machine bind their batches to the same core.
const PART: f64 = 0.5;
/// Threads are free again this long after the last batch.
const REST: Duration = Duration::from_secs(3);

/// Binds the threads of this process to cores, as long as it has them to itself.
#[derive(Debug)]
pub(super) struct CoreBinding {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Threads that run batches.
    batch_threads: Vec<libc::pid_t>,
    bound: Option<Bound>,
    /// The user has bound threads while they were bound here: they are left alone from then on.
    is_given_up: bool,
    /// When it was last decided, and the CPU time of all cores and of this process then.
    decided: Instant,
    used: Duration,
    own: Duration,
}

/// Cores, in ascending order.
type Cores = Vec<usize>;

/// How threads are bound: those that run batches to the last cores.
#[derive(Debug)]
struct Bound {
    rest: Cores,
    batches: Cores,
}

impl Bound {
    fn all(&self) -> Cores {
        [&self.rest[..], &self.batches].concat()
    }
}

impl CoreBinding {
    pub(super) fn new() -> Self {
        let state = State {
            batch_threads: Vec::new(),
            bound: None,
            is_given_up: false,
            decided: Instant::now(),
            // Less than all cores have used, so nothing is bound by the first decision.
            used: Duration::ZERO,
            own: Duration::ZERO,
        };
        Self { state: Mutex::new(state) }
    }

    /// This thread runs batches.
    pub(super) fn add_batch_thread(&self) {
        let mut state = self.state.lock();
        let thread = this_thread();
        if state.batch_threads.contains(&thread) {
            return;
        }
        state.batch_threads.push(thread);
        if let Some(bound) = &state.bound {
            bind(thread, &bound.batches);
        }
    }

    /// Decide `now`, in a thread that runs batches, whether this number of batches gets cores of its own among this number of
    /// `cores`.
    pub(super) fn decide(&self, now: Instant, batches: usize, cores: usize) {
        self.decide_by(now, batches, cores, cpu_time_of_cores, cpu_time());
    }

    fn decide_by(
        &self,
        now: Instant,
        batches: usize,
        cores: usize,
        used: impl Fn(&[usize]) -> Duration,
        own: Duration,
    ) {
        let mut state = self.state.lock();
        let current = cores_of(this_thread());
        if state.bound.as_ref().is_some_and(|bound| bound.batches != current) {
            (state.bound, state.is_given_up) = (None, true);
        }
        if state.is_given_up {
            return;
        }
        let all = state.bound.as_ref().map_or(current, Bound::all);
        let used = used(&all);
        let of_own = own.saturating_sub(state.own);
        let of_others = used.saturating_sub(state.used).saturating_sub(of_own);
        let part = now.saturating_duration_since(state.decided).mul_f64(PART);
        (state.decided, state.used, state.own) = (now, used, own);
        let is_alone = !used.is_zero() && of_own >= part && of_others < part;
        // Fewer cores than allowed: the process has a quota of CPU time, and its threads must not wait for each other.
        if is_alone && all.len() == cores && batches < cores {
            let (rest, batches) = all.split_at(cores - batches);
            state.bind(Bound { rest: rest.to_vec(), batches: batches.to_vec() });
        } else {
            state.free(&all);
        }
    }

    /// No batch has run for some time: the others, which may load a model now, need all cores.
    pub(super) fn rest(&self, now: Instant) {
        let mut state = self.state.lock();
        let is_long = now.saturating_duration_since(state.decided) > REST;
        if let Some(all) = state.bound.as_ref().filter(|_| is_long).map(Bound::all) {
            state.free(&all);
        }
    }
}

impl State {
    fn bind(&mut self, bound: Bound) {
        let running = threads();
        self.batch_threads.retain(|thread| running.contains(thread));
        let is_batch = |thread| self.batch_threads.contains(&thread);
        bind_all(|thread| if is_batch(thread) { &bound.batches } else { &bound.rest });
        self.bound = Some(bound);
    }

    fn free(&mut self, all: &Cores) {
        if self.bound.take().is_some() {
            bind_all(|_| all);
        }
    }
}

/// Bind every thread of this process, also those that a thread which was not bound yet starts meanwhile.
fn bind_all<'a>(cores: impl Fn(libc::pid_t) -> &'a Cores) {
    let mut running = threads();
    loop {
        for &thread in &running {
            bind(thread, cores(thread));
        }
        let before = std::mem::replace(&mut running, threads());
        if running == before {
            return;
        }
    }
}

fn this_thread() -> libc::pid_t {
    // SAFETY: the call takes no memory.
    unsafe { libc::gettid() }
}

/// The threads of this process.
fn threads() -> Vec<libc::pid_t> {
    let Ok(folder) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let names = folder.filter_map(|thread| Some(thread.ok()?.file_name()));
    names.filter_map(|name| name.to_str()?.parse().ok()).collect()
}

/// Cores on which a thread may run; empty where the system does not say it.
fn cores_of(thread: libc::pid_t) -> Cores {
    // SAFETY: the set is plain bits; the kernel writes at most its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(thread, size_of_val(&set), &raw mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect()
    }
}

/// Let a thread run on these cores alone. One that has ended, or that the system does not let bind, stays as it is.
fn bind(thread: libc::pid_t, cores: &Cores) {
    // SAFETY: the set is plain bits, and the cores are below its size; the kernel reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &core in cores {
            libc::CPU_SET(core, &mut set);
        }
        libc::sched_setaffinity(thread, size_of_val(&set), &raw const set);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use parking_lot::MutexGuard;

    use super::*;

    /// All threads of the process are bound, so one test at a time does that.
    static TURN: Mutex<()> = Mutex::new(());

    /// A process whose first thread runs batches and whose second one does not. Seconds pass one by one.
    struct Process {
        binding: CoreBinding,
        now: Instant,
        used: Duration,
        own: Duration,
        all: Cores,
        other: libc::pid_t,
        _ends: mpsc::Sender<()>,
        _turn: MutexGuard<'static, ()>,
    }

    impl Drop for Process {
        fn drop(&mut self) {
            bind_all(|_| &self.all);
        }
    }

    impl Process {
        /// `None` on a machine with one core, where nothing can be bound.
        fn new() -> Option<Self> {
            let turn = TURN.lock();
            let all = cores_of(this_thread());
            if all.len() < 2 {
                eprintln!("skipped: this process may use one core only");
                return None;
            }
            let (begins, begun) = mpsc::channel();
            let (ends, end) = mpsc::channel();
            std::thread::spawn(move || {
                begins.send(this_thread()).unwrap();
                end.recv().unwrap_err();
            });
            let (used, own) = (Duration::from_secs(5), Duration::from_secs(3));
            let process = Self {
                binding: CoreBinding::new(),
                now: Instant::now(),
                used,
                own,
                all,
                other: begun.recv().unwrap(),
                _ends: ends,
                _turn: turn,
            };
            process.binding.add_batch_thread();
            Some(process)
        }

        /// A second in which this process and others use this CPU time, in milliseconds, and one batch runs at a time.
        fn second(&mut self, own: u64, others: u64, cores: usize) -> (Cores, Cores) {
            self.now += Duration::from_secs(1);
            self.own += Duration::from_millis(own);
            self.used += Duration::from_millis(own + others);
            self.binding.decide_by(self.now, 1, cores, |_| self.used, self.own);
            self.bound()
        }

        /// The cores of the thread that runs batches, and of the other one.
        fn bound(&self) -> (Cores, Cores) {
            (cores_of(this_thread()), cores_of(self.other))
        }
    }

    #[test]
    fn batches_have_cores_of_their_own_while_other_processes_use_little() {
        let Some(mut process) = Process::new() else { return };
        let (cores, free) = (process.all.len(), (process.all.clone(), process.all.clone()));
        let (rest, batches) = process.all.split_at(cores - 1);
        let bound = (batches.to_vec(), rest.to_vec());
        assert_eq!(process.second(900, 100, cores), free, "the time of others before is not known");
        assert_eq!(process.second(900, 499, cores), bound);
        assert_eq!(process.second(900, 100, cores), bound);
        assert_eq!(process.second(900, 501, cores), free);
        assert_eq!(process.second(900, 100, cores), bound);
        assert_eq!(process.second(499, 100, cores), free, "another worker may be bound now");
        assert_eq!(process.second(500, 100, cores), bound);
        process.binding.rest(process.now + REST);
        assert_eq!(process.bound(), bound);
        process.binding.rest(process.now + REST + Duration::from_millis(1));
        assert_eq!(process.bound(), free);
    }

    #[test]
    fn a_thread_that_runs_batches_later_joins_the_others() {
        let Some(mut process) = Process::new() else { return };
        let cores = process.all.len();
        process.second(900, 0, cores);
        let (batches, rest) = process.second(900, 0, cores);
        std::thread::scope(|scope| {
            let later = || {
                assert_eq!(cores_of(this_thread()), batches, "as the thread that started it");
                bind(this_thread(), &rest);
                process.binding.add_batch_thread();
                cores_of(this_thread())
            };
            assert_eq!(scope.spawn(later).join().unwrap(), batches);
        });
    }

    #[test]
    fn nothing_is_bound_with_a_quota_of_fewer_cores_or_one_batch_per_core() {
        let Some(mut process) = Process::new() else { return };
        let free = (process.all.clone(), process.all.clone());
        for cores in [1, process.all.len() - 1, process.all.len() + 1] {
            for _ in 0..2 {
                assert_eq!(process.second(900, 0, cores), free, "{cores} cores");
            }
        }
    }

    #[test]
    fn nothing_is_bound_where_the_time_of_cores_is_not_known() {
        let Some(process) = Process::new() else { return };
        for second in 1..4 {
            let now = process.now + Duration::from_secs(second);
            process.binding.decide_by(now, 1, process.all.len(), |_| Duration::ZERO, Duration::ZERO);
            assert_eq!(process.bound(), (process.all.clone(), process.all.clone()));
        }
    }

    #[test]
    fn threads_that_the_user_has_bound_are_left_alone() {
        let Some(mut process) = Process::new() else { return };
        let cores = process.all.len();
        process.second(900, 0, cores);
        assert_ne!(process.second(900, 0, cores).0, process.all);
        bind_all(|_| &process.all);
        for _ in 0..3 {
            assert_eq!(process.second(900, 0, cores), (process.all.clone(), process.all.clone()));
        }
        bind(process.other, &process.all[..1].to_vec());
        process.binding.rest(process.now + 2 * REST);
        assert_eq!(process.bound().1, process.all[..1]);
    }
}
