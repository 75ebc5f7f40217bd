//! Passes requests from the connections that submit them to the threads that run batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{BatchLimits, Batcher, Job, Place, Refusal, Refused};

/// A [`Batcher`] that threads share. Threads that run batches call [`Self::take`]; any thread submits.
pub struct Dispatcher<T> {
    state: Mutex<State<T>>,
    /// Wakes threads that wait for a request.
    arrived: Condvar,
    /// Wakes threads that may run no batch until more may run at once.
    raised: Condvar,
    refuse: Box<dyn Fn(T, Refusal) + Send + Sync>,
}

struct State<T> {
    batcher: Batcher<T>,
    is_closed: bool,
}

/// Requests that run together. Dropping it tells the dispatcher that they have run.
pub struct Batch<T> {
    /// The requests, in the order of their deadlines.
    pub requests: Vec<T>,
    number: u64,
    dispatcher: Arc<Dispatcher<T>>,
}

/// A request that was submitted. Dropped while it waits, it is withdrawn.
#[must_use]
pub struct Submitted<T> {
    /// `None` where it was refused.
    place: Option<Place>,
    dispatcher: Arc<Dispatcher<T>>,
}

/// A place for a request that is still to come. Dropped without one, it lets the place go.
pub struct Reservation<T> {
    place: Option<Place>,
    deadline: Instant,
    dispatcher: Arc<Dispatcher<T>>,
}

impl<T> Dispatcher<T> {
    /// A dispatcher of idle threads. `refuse` answers a request that does not run; it is called by the thread that
    /// submits or takes, with no lock held.
    pub fn new(limits: BatchLimits, refuse: impl Fn(T, Refusal) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State { batcher: Batcher::new(limits), is_closed: false }),
            arrived: Condvar::new(),
            raised: Condvar::new(),
            refuse: Box::new(refuse),
        })
    }

    /// Queue a request, or refuse it at once.
    pub fn submit(self: &Arc<Self>, deadline: Instant, rows: u32, request: T) -> Submitted<T> {
        let mut state = self.state.lock();
        let job = Job { deadline, rows, request };
        let offered = if state.is_closed {
            Err(Refused { job, refusal: Refusal::Closed })
        } else {
            state.batcher.offer(Instant::now(), job)
        };
        let may_start = state.batcher.free() > 0;
        drop(state);
        let place = match offered {
            Ok(place) => {
                self.wake(may_start);
                Some(place)
            }
            Err(Refused { job, refusal }) => {
                (self.refuse)(job.request, refusal);
                None
            }
        };
        Submitted { place, dispatcher: Arc::clone(self) }
    }

    /// Admit a request that is still to come.
    ///
    /// # Errors
    /// Where [`Self::submit`] would refuse it now.
    pub fn reserve(self: &Arc<Self>, deadline: Instant, rows: u32) -> Result<Reservation<T>, Refusal> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Refusal::Closed);
        }
        let place = Some(state.batcher.reserve(Instant::now(), deadline, rows)?);
        Ok(Reservation { place, deadline, dispatcher: Arc::clone(self) })
    }

    /// Wait for a batch, `wait` at most, as the thread of this `number`. `None` when there is none, or the dispatcher is closed.
    ///
    /// Where fewer batches may run at once than there are threads, those with the lowest numbers run them: the first one has the
    /// highest priority. A thread that has run a batch asks again at once. The end of a batch wakes no other thread: every batch
    /// would then wait until that thread runs, while this one sleeps.
    pub fn take(self: &Arc<Self>, number: usize, wait: Duration) -> Option<Batch<T>> {
        let until = Instant::now() + wait;
        let mut state = self.state.lock();
        loop {
            if number >= state.batcher.batches() && !state.is_closed {
                // Perhaps this thread has just ended a batch, or was woken by a request.
                if state.batcher.free() > 0 && state.batcher.queued() > 0 {
                    self.arrived.notify_one();
                }
                if self.raised.wait_until(&mut state, until).timed_out() {
                    return None;
                }
                continue;
            }
            let next = state.batcher.next(Instant::now());
            if next.refused.is_empty() && next.batch.is_empty() {
                if state.is_closed {
                    return None;
                }
                let wake = next.held_until.map_or(until, |held| held.min(until));
                if self.arrived.wait_until(&mut state, wake).timed_out() && wake == until {
                    return None;
                }
                continue;
            }
            // One wake-up is for one request: others may be left for a batch beside this one.
            let may_start = state.batcher.free() > 0 && state.batcher.queued() > 0;
            drop(state);
            self.wake(may_start);
            for Refused { job, refusal } in next.refused {
                (self.refuse)(job.request, refusal);
            }
            if !next.batch.is_empty() {
                let requests = next.batch.into_iter().map(|job| job.request).collect();
                return Some(Batch { requests, number: next.number, dispatcher: Arc::clone(self) });
            }
            state = self.state.lock();
        }
    }

    /// From now on, this number of batches may run at once, up to the limit.
    pub fn set_batches(&self, batches: usize) {
        self.state.lock().batcher.set_batches(batches);
        self.raised.notify_all();
    }

    /// Wake a thread that waits for a request, where a batch may start. Else the thread whose batch ends next asks again.
    fn wake(&self, may_start: bool) {
        if may_start {
            self.arrived.notify_one();
        }
    }

    /// Whether a request that arrives now waits: as many batches run as may.
    pub fn is_busy(&self) -> bool {
        self.state.lock().batcher.free() == 0
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.state.lock().batcher.queued()
    }

    /// Refuse all waiting and all new requests. The running batch continues.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let waiting = state.batcher.clear();
        drop(state);
        self.arrived.notify_all();
        self.raised.notify_all();
        for job in waiting {
            (self.refuse)(job.request, Refusal::Closed);
        }
    }
}

impl<T> Reservation<T> {
    /// Queue the request that has arrived. If its place was lost, it is submitted as a new request.
    pub fn submit(mut self, rows: u32, request: T) -> Submitted<T> {
        let dispatcher = Arc::clone(&self.dispatcher);
        let Some(place) = self.place.take() else { return dispatcher.submit(self.deadline, rows, request) };
        let mut state = dispatcher.state.lock();
        let filled = state.batcher.fill(place, rows, request);
        let may_start = state.batcher.free() > 0;
        drop(state);
        match filled {
            Ok(()) => {
                dispatcher.wake(may_start);
                Submitted { place: Some(place), dispatcher }
            }
            Err(request) => dispatcher.submit(self.deadline, rows, request),
        }
    }
}

impl<T> Submitted<T> {
    /// Let the request run even if no one waits for it.
    pub fn keep(mut self) {
        self.place = None;
    }
}

impl<T> Drop for Submitted<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            // The request may hold much memory, whose release needs no lock.
            let withdrawn = self.dispatcher.state.lock().batcher.give_up(place);
            drop(withdrawn);
        }
    }
}

impl<T> Drop for Reservation<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.dispatcher.state.lock().batcher.give_up(place);
        }
    }
}

impl<T> std::fmt::Debug for Reservation<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<T> Drop for Batch<T> {
    fn drop(&mut self) {
        self.dispatcher.state.lock().batcher.finish(self.number, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    type Refusals = mpsc::Receiver<(u32, Refusal)>;

    fn dispatcher(queue_requests_max: usize, batches_max: usize) -> (Arc<Dispatcher<u32>>, Refusals) {
        let limits =
            BatchLimits { batch_requests_max: 4, batch_rows_max: 100, queue_requests_max, batches_max };
        let (sender, refusals) = mpsc::channel();
        (Dispatcher::new(limits, move |request, refusal| sender.send((request, refusal)).unwrap()), refusals)
    }

    fn soon() -> Instant {
        Instant::now() + LONG
    }

    #[test]
    fn every_request_of_many_threads_runs_once_and_as_many_batches_overlap_as_may() {
        for batches_max in 1..=3 {
            let (dispatcher, refusals) = dispatcher(1000, batches_max);
            let running = AtomicUsize::new(0);
            let take_all = |number| {
                let mut ran: Vec<u32> = Vec::new();
                while let Some(batch) = dispatcher.take(number, LONG) {
                    assert!(running.fetch_add(1, SeqCst) < batches_max);
                    assert!((1..=4).contains(&batch.requests.len()));
                    ran.extend(&batch.requests);
                    std::thread::yield_now();
                    running.fetch_sub(1, SeqCst);
                }
                ran
            };
            let mut ran: Vec<u32> = std::thread::scope(|scope| {
                let takers: Vec<_> = (0..4).map(|number| scope.spawn(move || take_all(number))).collect();
                std::thread::scope(|senders| {
                    for sender in 0..4_u32 {
                        let dispatcher = &dispatcher;
                        senders.spawn(move || {
                            (0..50)
                                .for_each(|number| dispatcher.submit(soon(), 1, sender * 50 + number).keep());
                        });
                    }
                });
                while dispatcher.queued() > 0 {
                    std::thread::yield_now();
                }
                dispatcher.close();
                takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
            });
            assert!(refusals.try_recv().is_err());
            ran.sort_unstable();
            assert_eq!(ran, (0..200).collect::<Vec<u32>>());
        }
    }

    /// Wait until a thread, named by its folder in `/proc`, has slept for some milliseconds.
    fn until_asleep(thread: std::path::PathBuf) {
        let stat = std::path::Path::new("/proc").join(thread).join("stat");
        let is_asleep =
            || std::fs::read_to_string(&stat).unwrap().rsplit(')').next().unwrap().starts_with(" S");
        let mut times = 0;
        while times < 5 {
            times = if is_asleep() { times + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_first_thread_runs_batch_after_batch_until_more_may_run_at_once() {
        let (dispatcher, _refusals) = dispatcher(1000, 3);
        dispatcher.set_batches(1);
        let ((sender, ran), together) = (mpsc::channel(), std::sync::Barrier::new(3));
        let (begins, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (dispatcher, sender, together) = (&dispatcher, sender.clone(), &together);
                let begins = begins.clone();
                scope.spawn(move || {
                    begins.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                    while let Some(batch) = dispatcher.take(thread, LONG) {
                        for &request in &batch.requests {
                            sender.send((thread, request)).unwrap();
                        }
                        // The last three requests run until all of them do.
                        if batch.requests[0] >= 100 {
                            together.wait();
                        }
                    }
                });
            }
            // A thread that asks for the first time would find a request that waits.
            begun.iter().take(3).for_each(until_asleep);
            let threads_of = |requests: std::ops::Range<u32>| -> Vec<usize> {
                let thread = |request| {
                    dispatcher.submit(soon(), 1, request).keep();
                    ran.recv().unwrap().0
                };
                requests.map(thread).collect()
            };
            assert_eq!(threads_of(0..40), [0; 40]);
            dispatcher.set_batches(3);
            let mut threads = threads_of(100..103);
            threads.sort_unstable();
            assert_eq!(threads, [0, 1, 2]);
            dispatcher.close();
        });
    }

    #[test]
    fn a_thread_that_may_run_no_more_batches_leaves_requests_to_another() {
        let (dispatcher, _refusals) = dispatcher(1000, 2);
        let [first, second] = [0, 1].map(|number| {
            dispatcher.submit(soon(), 1, 0).keep();
            dispatcher.take(number, LONG).unwrap()
        });
        dispatcher.set_batches(1);
        drop(first);
        std::thread::scope(|scope| {
            let (begins, begun) = mpsc::channel();
            let dispatcher = &dispatcher;
            let waiting = scope.spawn(move || {
                begins.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                dispatcher.take(0, LONG).unwrap().requests.clone()
            });
            until_asleep(begun.recv().unwrap());
            dispatcher.submit(soon(), 1, 7).keep();
            drop(second);
            assert!(dispatcher.take(1, Duration::from_millis(1)).is_none());
            assert_eq!(waiting.join().unwrap(), [7]);
        });
    }

    #[test]
    fn what_a_batch_leaves_runs_beside_it() {
        let (dispatcher, _refusals) = dispatcher(1000, 2);
        (0..5).for_each(|request| dispatcher.submit(soon(), 1, request).keep());
        let first = dispatcher.take(0, LONG).unwrap();
        assert_eq!(first.requests.len(), 4);
        let second = dispatcher.take(0, LONG).unwrap();
        assert_eq!(second.requests, [4]);
        dispatcher.submit(soon(), 1, 5).keep();
        assert!(dispatcher.take(0, Duration::from_millis(1)).is_none(), "two batches run");
        drop(first);
        assert_eq!(dispatcher.take(0, LONG).unwrap().requests, [5]);
    }

    #[test]
    fn refusals_reach_the_request() {
        let (dispatcher, refusals) = dispatcher(2, 1);
        dispatcher.submit(Instant::now().checked_sub(Duration::from_secs(1)).unwrap(), 1, 1).keep();
        assert!(matches!(refusals.recv().unwrap(), (1, Refusal::Late { .. })));
        dispatcher.submit(soon(), 101, 2).keep();
        assert_eq!(refusals.recv().unwrap(), (2, Refusal::TooLarge { rows: 101, rows_max: 100 }));
        (3..6).for_each(|request| dispatcher.submit(soon(), 1, request).keep());
        assert_eq!(refusals.recv().unwrap(), (5, Refusal::Full { queued: 2 }));
        dispatcher.close();
        dispatcher.submit(soon(), 1, 6).keep();
        let rest: Vec<_> = refusals.try_iter().collect();
        assert_eq!(rest, [(3, Refusal::Closed), (4, Refusal::Closed), (6, Refusal::Closed)]);
        assert!(dispatcher.take(0, LONG).is_none());
    }

    #[test]
    fn a_reserved_place_is_filled_let_go_or_lost() {
        let (dispatcher, refusals) = dispatcher(2, 1);
        let (first, second) =
            (dispatcher.reserve(soon(), 1).unwrap(), dispatcher.reserve(soon(), 1).unwrap());
        assert_eq!(dispatcher.reserve(soon(), 1).unwrap_err(), Refusal::Full { queued: 2 });
        drop(second);
        assert_eq!(dispatcher.queued(), 1);
        assert!(dispatcher.take(0, Duration::from_millis(1)).is_none());
        first.submit(1, 7).keep();
        assert_eq!(dispatcher.take(0, LONG).unwrap().requests, [7]);
        let lost = dispatcher.reserve(soon(), 1).unwrap();
        dispatcher.close();
        lost.submit(1, 8).keep();
        assert_eq!(refusals.recv().unwrap(), (8, Refusal::Closed));
        assert_eq!(dispatcher.reserve(soon(), 1).unwrap_err(), Refusal::Closed);
    }

    #[test]
    fn a_reserved_place_is_free_again_when_its_request_is_too_large() {
        let (dispatcher, refusals) = dispatcher(1, 1);
        dispatcher.reserve(soon(), 1).unwrap().submit(101, 7).keep();
        assert_eq!(refusals.recv().unwrap(), (7, Refusal::TooLarge { rows: 101, rows_max: 100 }));
        assert_eq!(dispatcher.queued(), 0);
        dispatcher.submit(soon(), 1, 8).keep();
        assert_eq!(dispatcher.take(0, LONG).unwrap().requests, [8]);
    }

    #[test]
    fn a_request_is_withdrawn_only_while_it_waits() {
        let (dispatcher, refusals) = dispatcher(2, 1);
        let withdrawn = dispatcher.submit(soon(), 1, 1);
        let kept = dispatcher.reserve(soon(), 1).unwrap().submit(1, 2);
        drop(withdrawn);
        let batch = dispatcher.take(0, LONG).unwrap();
        assert_eq!(batch.requests, [2]);
        dispatcher.submit(soon(), 1, 3).keep();
        drop(kept);
        assert_eq!(dispatcher.queued(), 1, "the place of a request that runs is no one else's");
        drop(batch);
        assert_eq!(dispatcher.take(0, LONG).unwrap().requests, [3]);
        drop(dispatcher.reserve(soon(), 1).unwrap().submit(1, 4));
        assert_eq!(dispatcher.queued(), 0);
        assert!(refusals.try_recv().is_err());
    }

    #[test]
    fn a_wait_without_requests_ends() {
        assert!(dispatcher(2, 1).0.take(0, Duration::from_millis(1)).is_none());
    }
}
