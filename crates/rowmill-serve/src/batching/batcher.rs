//! The deadline queue: instants in, decisions out.
//!
//! Invariants:
//! - Requests run in the order of their deadlines (Liu and Layland, 1973), whole, never split over batches.
//! - Every request of a batch is predicted to meet its deadline when the batch starts, unless the batch is a *trial*: one
//!   request that an idle device runs although it is predicted to be late. Nothing else could correct a prediction that one
//!   slow batch has made longer than all deadlines.
//! - A request is admitted only if it raises the number of queued requests that are predicted to meet their deadlines.
//!   All others are refused when they arrive, while their sender can still ask elsewhere.
//! - The queue has a bound, and so has the number of batches that run at once.
//! - A place can be reserved before its request is there, so that work for a request begins once it is admitted. A
//!   reserved place counts as a request; batches pass over it until it is filled, and it is lost at its deadline.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

use super::ServiceTime;

/// Longest time that a batch is held back: longer ones gain more by a core of their own.
const HOLD_MAX: Duration = Duration::from_millis(5);

/// How much a batch and the queue may hold, and how many batches run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Requests of one batch; 1 turns batching off.
    pub batch_requests_max: usize,
    /// Rows of one batch.
    pub batch_rows_max: u32,
    /// Requests that wait.
    pub queue_requests_max: usize,
    /// Batches that run at once at most: 1 on a GPU, up to one per core on a CPU.
    pub batches_max: usize,
}

/// A request that waits or runs.
#[derive(Debug)]
pub struct Job<T> {
    /// When its reply must be ready.
    pub deadline: Instant,
    /// Rows it adds to a batch.
    pub rows: u32,
    /// The request.
    pub request: T,
}

/// Where a request waits: its deadline, and its number among all arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(Instant, u64);

/// What a place holds.
#[derive(Debug)]
struct Waiting<T> {
    rows: u32,
    /// `None` where the place is reserved.
    request: Option<T>,
}

/// Why a request does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue is full.
    #[error("{queued} requests wait already: send fewer, or raise queue_requests, which is {queued}")]
    Full {
        /// How many wait.
        queued: usize,
    },
    /// It is larger than any batch.
    #[error("the request has {rows} rows, a batch takes {rows_max}: split it, or raise batch_rows")]
    TooLarge {
        /// Its rows.
        rows: u32,
        /// Rows of a batch at most.
        rows_max: u32,
    },
    /// It would be late itself.
    #[error(
        "its reply would take {needed:?}, its deadline is in {left:?}, behind {queued} requests: retry later or allow more time"
    )]
    Late {
        /// From its arrival to its predicted reply.
        needed: Duration,
        /// From its arrival to its deadline.
        left: Duration,
        /// Requests that wait.
        queued: usize,
    },
    /// It would make another request late that has been admitted.
    #[error("it would delay one of {queued} admitted requests beyond its deadline: retry later")]
    WouldDelay {
        /// Requests that wait.
        queued: usize,
    },
    /// It was admitted, but earlier batches took longer than predicted.
    #[error(
        "earlier batches took longer than predicted, and {left:?} are too few for its own batch of {needed:?}: retry later"
    )]
    Delayed {
        /// The predicted time of its batch.
        needed: Duration,
        /// Time that was left until its deadline.
        left: Duration,
    },
    /// The process ends.
    #[error("the process is about to end: send the request to another one")]
    Closed,
}

/// A request that does not run, and why.
#[derive(Debug)]
pub struct Refused<T> {
    /// The request.
    pub job: Job<T>,
    /// Why it does not run.
    pub refusal: Refusal,
}

/// What to do now.
#[derive(Debug)]
pub struct Next<T> {
    /// Requests that can no longer meet their deadlines.
    pub refused: Vec<Refused<T>>,
    /// The batch to run; empty when nothing waits, or as many batches run as may.
    pub batch: Vec<Job<T>>,
    /// Its number, for [`Batcher::finish`].
    pub number: u64,
    /// If a batch is held back: when to ask again, unless a request arrives or a batch ends before.
    pub held_until: Option<Instant>,
}

/// The deadline queue of one program on a device.
#[derive(Debug)]
pub struct Batcher<T> {
    limits: BatchLimits,
    /// Batches that may run at once now.
    batches: usize,
    service: ServiceTime,
    queue: BTreeMap<Place, Waiting<T>>,
    arrivals: u64,
    running: Vec<Running>,
    /// Batches that have started.
    started: u64,
    /// When the last batch ended, if requests waited then: the time until the next batch starts is part of its time.
    waits_since: Option<Instant>,
    /// When the last batch ended.
    last_end: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    number: u64,
    started: Instant,
    rows: u32,
    is_trial: bool,
}

impl<T> Batcher<T> {
    /// An idle device whose speed is not known yet.
    ///
    /// # Panics
    /// When a limit is 0.
    pub fn new(limits: BatchLimits) -> Self {
        let BatchLimits { batch_requests_max, batch_rows_max, queue_requests_max, batches_max } = limits;
        let least = batch_requests_max.min(queue_requests_max).min(batches_max);
        assert!(least > 0 && batch_rows_max > 0, "{limits:?}");
        let (service, queue) = (ServiceTime::default(), BTreeMap::new());
        let running = Vec::with_capacity(batches_max);
        Self {
            limits,
            batches: batches_max,
            service,
            queue,
            arrivals: 0,
            running,
            started: 0,
            waits_since: None,
            last_end: None,
        }
    }

    /// From now on, this number of batches may run at once: at least 1, and at most the limit. Those that run end as they would.
    pub fn set_batches(&mut self, batches: usize) {
        self.batches = batches.clamp(1, self.limits.batches_max);
    }

    /// How many batches may run at once now.
    pub fn batches(&self) -> usize {
        self.batches
    }

    /// How many batches may start now, beside those that run.
    pub fn free(&self) -> usize {
        self.batches.saturating_sub(self.running.len())
    }

    /// Requests that wait, and reserved places.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether a batch runs.
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Admit a request that arrives `now`, or give it back. Returns its place.
    ///
    /// Costs a walk over the queue, and a second one where requests with later deadlines wait.
    ///
    /// # Errors
    /// When the queue is full, the request too large, or too few requests would meet their deadlines.
    pub fn offer(&mut self, now: Instant, job: Job<T>) -> Result<Place, Refused<T>> {
        match self.reserve(now, job.deadline, job.rows) {
            Ok(place) => {
                self.queue.insert(place, Waiting { rows: job.rows, request: Some(job.request) });
                Ok(place)
            }
            Err(refusal) => Err(Refused { job, refusal }),
        }
    }

    /// Admit a request that is still to come, as [`Self::offer`] would at this moment.
    ///
    /// # Errors
    /// As [`Self::offer`].
    pub fn reserve(&mut self, now: Instant, deadline: Instant, rows: u32) -> Result<Place, Refusal> {
        self.drop_expired(now);
        let place = Place(deadline, self.arrivals);
        if let Some(refusal) = self.refusal(now, place, rows) {
            return Err(refusal);
        }
        self.queue.insert(place, Waiting { rows, request: None });
        self.arrivals += 1;
        Ok(place)
    }

    /// Put a request into its reserved place.
    ///
    /// # Errors
    /// Gives the request back where its deadline has passed, the queue was cleared, or it has more rows than a batch. It has
    /// no place then.
    pub fn fill(&mut self, place: Place, rows: u32, request: T) -> Result<(), T> {
        match self.queue.get_mut(&place) {
            Some(waiting) if rows <= self.limits.batch_rows_max => {
                *waiting = Waiting { rows, request: Some(request) };
                Ok(())
            }
            _ => {
                self.give_up(place);
                Err(request)
            }
        }
    }

    /// Let a place go. Returns the request that waits there.
    pub fn give_up(&mut self, place: Place) -> Option<T> {
        self.queue.remove(&place)?.request
    }

    /// The batch that starts `now`, if one more may run. Its end must be reported by [`Self::finish`].
    pub fn next(&mut self, now: Instant) -> Next<T> {
        let (refused, batch) = (Vec::new(), Vec::new());
        let mut next = Next { refused, batch, number: self.started, held_until: None };
        if self.free() == 0 {
            return next;
        }
        self.drop_expired(now);
        let started = self.waits_since.take().unwrap_or(now);
        let (mut plan, margin) = (Plan::default(), self.service.margin(0));
        let mut places = Vec::new();
        let (mut is_trial, mut is_all) = (false, true);
        let mut last = None;
        while let Some((place, rows)) = self.first_filled_behind(last) {
            let deadline = place.0;
            let step = plan.add(&self.limits, &self.service, margin, now, deadline, rows);
            last = Some(place);
            match step {
                Step::Starts => {
                    is_all = false;
                    break;
                }
                Step::Joins => places.push(place),
                Step::Misses { needed } => {
                    is_trial = self.queue.len() == 1 && self.may_try(now, deadline, rows);
                    if is_trial {
                        places.push(place);
                    } else if let Some(job) = self.take(place) {
                        let left = deadline.saturating_duration_since(now);
                        next.refused.push(Refused { job, refusal: Refusal::Delayed { needed, left } });
                    }
                }
            }
        }
        if is_all {
            next.held_until = self.holds(now, &plan);
        }
        if next.held_until.is_none() {
            next.batch = places.into_iter().filter_map(|place| self.take(place)).collect();
        }
        if !next.batch.is_empty() {
            let rows = next.batch.iter().map(|job| job.rows).sum();
            self.running.push(Running { number: next.number, started, rows, is_trial });
            self.started += 1;
        }
        next
    }

    /// Until when a batch of all requests that wait is held back, because one that runs is about to end.
    ///
    /// A batch with room left gains more by further requests than by starting at once on a core that sockets and
    /// lookups need, too.
    fn holds(&self, now: Instant, plan: &Plan) -> Option<Instant> {
        let has_room =
            plan.requests < self.limits.batch_requests_max && plan.rows < self.limits.batch_rows_max;
        // Half of all batches take longer than predicted, so the end gets a margin.
        let time = |rows| self.service.predict(rows).saturating_add(self.service.margin(0));
        let ends = self.running.iter().filter_map(|running| running.started.checked_add(time(running.rows)));
        let end = ends.min()?;
        let is_soon = end > now && end <= now + HOLD_MAX;
        let needed = self.service.predict(plan.rows).saturating_add(self.service.margin(1));
        let is_in_time =
            end.checked_add(needed).is_some_and(|end| plan.deadline.is_some_and(|last| end <= last));
        (has_room && is_soon && is_in_time).then_some(end)
    }

    fn take(&mut self, place: Place) -> Option<Job<T>> {
        let Waiting { rows, request } = self.queue.remove(&place)?;
        request.map(|request| Job { deadline: place.0, rows, request })
    }

    fn first_filled_behind(&self, last: Option<Place>) -> Option<(Place, u32)> {
        let behind = self.queue.range((last.map_or(Unbounded, Excluded), Unbounded));
        let mut filled = behind.filter(|(_, waiting)| waiting.request.is_some());
        filled.next().map(|(&place, waiting)| (place, waiting.rows))
    }

    /// Reserved places whose deadlines have passed will not be filled in time.
    fn drop_expired(&mut self, now: Instant) {
        let passed = self.queue.range(..Place(now, 0));
        let expired = passed.filter(|(_, waiting)| waiting.request.is_none()).map(|(&place, _)| place);
        for place in expired.collect::<Vec<_>>() {
            self.queue.remove(&place);
        }
    }

    /// The batch of this number ended `now`.
    ///
    /// # Panics
    /// When it does not run.
    pub fn finish(&mut self, number: u64, now: Instant) {
        let at = self.running.iter().position(|running| running.number == number);
        let running = self.running.swap_remove(at.expect("a batch ends once"));
        if running.is_trial {
            // What was known is wrong.
            self.service = ServiceTime::default();
        }
        self.service.observe(running.rows, now.saturating_duration_since(running.started));
        self.waits_since = self.first_filled_behind(None).map(|_| now);
        self.last_end = Some(now);
    }

    /// Take out every request that waits, because the process ends.
    pub fn clear(&mut self) -> Vec<Job<T>> {
        let taken = std::mem::take(&mut self.queue).into_iter();
        let job = |(Place(deadline, _), Waiting { rows, request }): (Place, Waiting<T>)| {
            request.map(|request| Job { deadline, rows, request })
        };
        taken.filter_map(job).collect()
    }

    fn refusal(&self, now: Instant, place: Place, rows: u32) -> Option<Refusal> {
        let (queued, deadline) = (self.queue.len(), place.0);
        if rows > self.limits.batch_rows_max {
            return Some(Refusal::TooLarge { rows, rows_max: self.limits.batch_rows_max });
        }
        if queued >= self.limits.queue_requests_max {
            return Some(Refusal::Full { queued });
        }
        // An equal deadline runs after those that came before.
        let of = |(place, waiting): (&Place, &Waiting<T>)| (place.0, waiting.rows, false);
        let (before, behind) = (self.queue.range(..place).map(of), self.queue.range(place..).map(of));
        let delays_none = behind.clone().next().is_none();
        let with = before.chain(std::iter::once((deadline, rows, true))).chain(behind);
        let with = self.forecast(now, with);
        if let Some(ends) = with.newcomer_misses {
            if queued == 0 && self.may_try(now, deadline, rows) {
                return None;
            }
            let needed = ends.saturating_duration_since(now);
            return Some(Refusal::Late { needed, left: deadline.saturating_duration_since(now), queued });
        }
        if delays_none {
            return None;
        }
        let met_without = self.forecast(now, self.queue.iter().map(of)).met;
        (with.met <= met_without).then_some(Refusal::WouldDelay { queued })
    }

    /// Whether a request that is predicted to be late may run as a trial. The device must have been idle for as long as the
    /// request is predicted to take, so that requests without hope take at most half of its time.
    fn may_try(&self, now: Instant, deadline: Instant, rows: u32) -> bool {
        let needed = self.service.predict(rows).saturating_add(self.service.margin(0));
        let is_rested = |end: Instant| now.saturating_duration_since(end) >= needed;
        self.running.is_empty() && now < deadline && self.last_end.is_some_and(is_rested)
    }

    /// Play [`Self::next`] and [`Self::finish`] with predicted times until the queue is empty. The newcomer has a margin for
    /// all batches before its own. Requests that wait have that of one batch, as when their turn comes: else a passing doubt
    /// about one of them would admit another in its place, and both would run.
    fn forecast(&self, now: Instant, queue: impl Iterator<Item = (Instant, u32, bool)>) -> Forecast {
        let mut turns = self.turns(now);
        let (mut turn, mut plan) = (pop_first(&mut turns), Plan::default());
        let mut forecast = Forecast { met: 0, newcomer_misses: None };
        let of_one = self.service.margin(0);
        for (deadline, rows, is_newcomer) in queue {
            let margin = |ahead| if is_newcomer { self.service.margin(ahead) } else { of_one };
            let mut step = plan.add(&self.limits, &self.service, margin(turn.1), turn.0, deadline, rows);
            if let Step::Starts = step {
                let end = turn.0.checked_add(self.service.predict(plan.rows)).unwrap_or(turn.0);
                turns.push((end, turn.1 + 1));
                (turn, plan) = (pop_first(&mut turns), Plan::default());
                step = plan.add(&self.limits, &self.service, margin(turn.1), turn.0, deadline, rows);
            }
            match step {
                Step::Misses { needed } if is_newcomer => {
                    forecast.newcomer_misses = Some(turn.0.checked_add(needed).unwrap_or(turn.0));
                }
                Step::Misses { .. } => {}
                Step::Joins | Step::Starts => forecast.met += 1,
            }
        }
        forecast
    }

    /// When each batch that may run at once can start, with the number of batches before it.
    fn turns(&self, now: Instant) -> Vec<Turn> {
        let end = |running: &Running| {
            now.max(running.started.checked_add(self.service.predict(running.rows)).unwrap_or(now))
        };
        let mut busy: Vec<Turn> = self.running.iter().map(|running| (end(running), 1)).collect();
        // Where more run than may, the next batch starts when enough of them have ended.
        busy.sort_unstable();
        let excess = self.running.len().saturating_sub(self.batches);
        std::iter::repeat_n((now, 0), self.free()).chain(busy.into_iter().skip(excess)).collect()
    }
}

/// When a batch can start, and how many run before it in its place.
type Turn = (Instant, usize);

/// Take out the turn that comes first.
fn pop_first(turns: &mut Vec<Turn>) -> Turn {
    let first = (0..turns.len()).min_by_key(|&at| turns[at]).expect("at least one batch may run");
    turns.swap_remove(first)
}

/// The predictions for a queue.
struct Forecast {
    /// Requests that meet their deadlines.
    met: usize,
    /// When the newcomer would end, if that is too late.
    newcomer_misses: Option<Instant>,
}

/// A batch that is being filled, in the order of deadlines.
#[derive(Default)]
struct Plan {
    requests: usize,
    rows: u32,
    /// The earliest deadline of the batch.
    deadline: Option<Instant>,
}

/// What becomes of the next request in order.
enum Step {
    /// It joins the batch.
    Joins,
    /// The batch is full, or would take too long with it: it starts the next batch.
    Starts,
    /// It cannot meet its deadline, even alone and now.
    Misses { needed: Duration },
}

impl Plan {
    /// Add the next request to a batch that starts at `at`, if it fits and would end by its deadline with a margin.
    /// Deadlines never fall from call to call, so the first one is the batch's.
    fn add(
        &mut self,
        limits: &BatchLimits,
        service: &ServiceTime,
        margin: Duration,
        at: Instant,
        deadline: Instant,
        rows: u32,
    ) -> Step {
        let total = self.rows.saturating_add(rows);
        let needed = service.predict(total).saturating_add(margin);
        let is_in_time = |deadline: Instant| at.checked_add(needed).is_some_and(|end| end <= deadline);
        if self.requests == 0 && !is_in_time(deadline) {
            return Step::Misses { needed };
        }
        let is_full = self.requests == limits.batch_requests_max || total > limits.batch_rows_max;
        if self.requests > 0 && (is_full || !self.deadline.is_some_and(is_in_time)) {
            return Step::Starts;
        }
        self.deadline = self.deadline.or(Some(deadline));
        self.requests += 1;
        self.rows = total;
        Step::Joins
    }
}

#[cfg(test)]
mod tests;
