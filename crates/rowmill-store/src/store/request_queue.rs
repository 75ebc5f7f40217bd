//! Queued gets: gets that wait in a queue instead of in the caller's thread.
//!
//! A worker that still owes a put must not wait for a clock, which may be released only by that put. So its
//! get is queued. A thread of the store takes all clocks of the get as soon as every row is within its
//! bound, or none of them. The worker collects the rows later.
//!
//! A queued get that cannot proceed holds no clocks, so the queue never blocks other calls. Younger steps
//! give way to it as they do to a waiting thread. Gets of one step are served in their order. No get
//! overtakes a get of an older step that wants one of its rows: the worker may collect the older one first.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rowmill_sync::{Condvar, Mutex, Poison, ranks};

use super::table::Table;
use crate::error::StoreError;
use crate::group::Ticket;
use crate::lookup::{Blocked, Lookup, WAIT_SLICE};
use crate::memory::Claim;
use crate::staleness::{Call, Held, TicketState, Tickets};
use crate::threads::spawn;

/// Maximum of gets that wait or are not collected. More are refused.
const GETS_MAX: u64 = 4096;
/// Bytes of a get besides its rows.
const GET_BYTES: usize = 1024;
/// The queue ends a get at the deadline of the store and reports the row it waited for. If the queue's thread
/// is stalled, the waiting caller itself gives up after this additional time.
const HELD_UP: Duration = Duration::from_secs(1);
/// Used instead of an infinite deadline: still within the range of the clock.
const YEAR: Duration = Duration::from_hours(365 * 24);

/// A get that waits in the queue, or is done. Dropping it removes it from the queue; clocks that it has taken
/// belong to its ticket. It does not keep its step alive: once the ticket is dropped, the get fails.
#[derive(Debug)]
pub struct QueuedGet {
    request: Arc<Request>,
    /// Memory of its rows.
    _claim: Claim,
    /// Counts this get in the queue as long as it lives.
    _counted: Arc<()>,
}

impl QueuedGet {
    /// Whether [`QueuedGet::wait`] would return at once.
    pub fn is_ready(&self) -> bool {
        self.request.table.store().check_process().is_err() || self.request.outcome.lock().is_some()
    }

    /// The weights of the ids, `dim` floats each, in the order of the ids. Waits until the get completes, at
    /// most until the deadline of the store.
    ///
    /// # Errors
    /// As [`Table::get_or_init`]. [`StoreError::StepOver`] when the ticket was dropped before the get
    /// completed, [`StoreError::QueueTimeout`] when it was not served in time, [`StoreError::Closed`] when
    /// the store was closed, [`StoreError::Poisoned`] when the queue's thread panicked.
    pub fn wait(self) -> Result<Vec<f32>, StoreError> {
        self.request.table.store().check_process()?;
        let longest = self.request.table.group().wait_deadline.saturating_add(HELD_UP);
        let until = Instant::now() + longest.min(YEAR);
        let mut outcome = self.request.outcome.lock();
        loop {
            if let Some(result) = outcome.take() {
                return result;
            }
            if Instant::now() >= until {
                return Err(self.request.timeout());
            }
            (outcome, _) = self.request.done.wait_until(outcome, until);
        }
    }
}

impl Drop for QueuedGet {
    fn drop(&mut self) {
        if self.request.table.store().check_process().is_err() {
            return;
        }
        self.request.cancelled.store(true, SeqCst);
        // Wakes the queue's thread, which then drops the request and its reference to the ticket.
        self.request.table.group().tickets.gate.open();
    }
}

#[derive(Debug)]
struct Request {
    table: Table,
    lookup: Lookup,
    step: u64,
    ticket: Weak<Ticket>,
    begun: Instant,
    cancelled: AtomicBool,
    outcome: Mutex<Option<Result<Vec<f32>, StoreError>>, ranks::QueuedResult>,
    done: Condvar,
    /// The shard in which younger steps give way to this get.
    waits_in: Mutex<Option<usize>, ranks::QueuedGet>,
}

impl Request {
    /// Take the rows if possible now. Returns whether the request is over.
    fn attempt(&self) -> bool {
        if self.cancelled.load(SeqCst) {
            self.stand_down();
            return true;
        }
        let _caller = self.table.store().workers.enter();
        let Some(result) = self.take().transpose() else { return false };
        self.stand_down();
        self.finish(result);
        true
    }

    /// End a get that waits behind others if its deadline has passed. Returns whether it is over.
    fn expire(&self) -> bool {
        let cancelled = self.cancelled.load(SeqCst);
        // It makes no younger step give way meanwhile: the get before it may wait for such a step.
        self.stand_down();
        let over = self.begun.elapsed() >= self.table.group().wait_deadline;
        if over && !cancelled {
            self.finish(Err(self.timeout()));
        }
        over || cancelled
    }

    fn timeout(&self) -> StoreError {
        StoreError::QueueTimeout {
            table: self.table.name().to_owned(),
            rows: self.lookup.lookups(),
            waited: self.begun.elapsed(),
        }
    }

    /// The rows, or `None` if not all clocks can be taken yet.
    fn take(&self) -> Result<Option<Vec<f32>>, StoreError> {
        let (group, store) = (self.table.group(), self.table.store());
        store.check_writable("a training read")?;
        let ticket = self.ticket.upgrade().ok_or(StoreError::StepOver { ticket: self.step })?;
        let blocked = match store.settle(group.try_fetch(&self.lookup, &ticket))? {
            Ok(rows) => return Ok(Some(rows)),
            Err(blocked) => blocked,
        };
        self.stand_by(&blocked, &ticket.state);
        if group.tickets.must_give_way(&ticket.state, blocked.row) {
            let (_, table, id) = blocked.row;
            return Err(StoreError::StepConflict { ticket: self.step, key: group.key(table, id) });
        }
        let waited = self.begun.elapsed();
        if waited >= group.wait_deadline {
            return Err(group.timeout(blocked.row, blocked.outstanding, waited, &ticket.state));
        }
        Ok(None)
    }

    /// Announce which row this get waits for, so that younger steps give way.
    fn stand_by(&self, blocked: &Blocked, ticket: &TicketState) {
        let mut waits_in = self.waits_in.lock();
        let shards = &self.table.group().shards;
        let moved = waits_in.replace(blocked.shard).filter(|&shard| shard != blocked.shard);
        if let Some(shard) = moved {
            shards[shard].waiting.lock().remove(&self.step);
            shards[shard].gate.open();
        }
        ticket.wait_for(self.call(), blocked.row, Vec::new);
        shards[blocked.shard].waiting.lock().insert(self.step, blocked.row);
    }

    fn stand_down(&self) {
        if let Some(shard) = self.waits_in.lock().take() {
            let cell = &self.table.group().shards[shard];
            if let Some(ticket) = self.ticket.upgrade() {
                ticket.state.end_wait(self.call());
            }
            cell.waiting.lock().remove(&self.step);
            // Younger steps that gave way may proceed.
            cell.gate.open();
        }
    }

    fn call(&self) -> Call {
        (self.table.group_number(), self.lookup.serial)
    }

    /// The rows that the get asks for.
    fn rows(&self) -> impl Iterator<Item = Held> {
        let (group, table) = (self.table.group_number(), self.table.state().local);
        self.lookup.keys().iter().map(move |key| (group, table, key.id))
    }

    fn finish(&self, result: Result<Vec<f32>, StoreError>) {
        *self.outcome.lock() = Some(result);
        self.done.notify_all();
    }
}

/// The queue of a store and its thread.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    requests: Mutex<Vec<Arc<Request>>, ranks::QueueRequests>,
    arrived: Condvar,
    tickets: Arc<Tickets>,
    poison: Arc<Poison>,
    stop: AtomicBool,
    /// Its reference count, minus one, is the number of gets that wait or are not collected.
    counted: Arc<()>,
}

impl RequestQueue {
    pub(crate) fn start(tickets: Arc<Tickets>, poison: Arc<Poison>) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared {
            requests: Mutex::default(),
            arrived: Condvar::new(),
            tickets,
            poison,
            stop: AtomicBool::new(false),
            counted: Arc::default(),
        });
        let seen = Arc::clone(&shared);
        let thread = spawn("queue", move || {
            let worked = seen.poison.catch("the queue thread", || seen.work());
            seen.end(|| match &worked {
                Ok(()) => StoreError::Closed,
                Err(cause) => StoreError::Poisoned { cause: cause.clone() },
            });
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Queue a get. The caller ensures that only one thread pushes at a time.
    ///
    /// # Errors
    /// [`StoreError::QueueFull`].
    pub(crate) fn push(
        &self,
        table: Table,
        lookup: Lookup,
        ticket: &Arc<Ticket>,
    ) -> Result<QueuedGet, StoreError> {
        let (budget, rows) = (&table.group().core.budget, lookup.lookups());
        let bytes = GET_BYTES + rows * table.spec().dim as usize * size_of::<f32>();
        let gets = Arc::strong_count(&self.shared.counted) as u64 - 1;
        let claim = (gets < GETS_MAX).then(|| budget.queued.try_claim(bytes as u64)).flatten();
        let claim = claim.ok_or_else(|| StoreError::QueueFull {
            table: table.name().to_owned(),
            rows,
            gets,
            gets_max: GETS_MAX,
            bytes: budget.queued.used(),
            bytes_max: budget.queued.limit(),
        })?;
        let request = Arc::new(Request {
            table,
            lookup,
            step: ticket.id(),
            ticket: Arc::downgrade(ticket),
            begun: Instant::now(),
            cancelled: AtomicBool::new(false),
            outcome: Mutex::default(),
            done: Condvar::new(),
            waits_in: Mutex::default(),
        });
        let counted = Arc::clone(&self.shared.counted);
        let get = QueuedGet { request: Arc::clone(&request), _claim: claim, _counted: counted };
        let mut requests = self.shared.requests.lock();
        if self.shared.stop.load(SeqCst) {
            drop(requests);
            request.finish(Err(self
                .shared
                .poison
                .check()
                .err()
                .map_or(StoreError::Closed, StoreError::from)));
            return Ok(get);
        }
        requests.push(request);
        drop(requests);
        self.shared.arrived.notify_all();
        // The thread may be waiting for clocks of other gets, and must look at this one too.
        self.shared.tickets.gate.open();
        Ok(get)
    }
}

impl Drop for RequestQueue {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        drop(self.shared.requests.lock());
        self.shared.arrived.notify_all();
        self.shared.tickets.gate.open();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread was caught and has already poisoned the store.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some((mut requests, seen)) = self.next_round() {
            // The sort is stable, so gets of one step keep their order.
            requests.sort_by_key(|request| request.step);
            let mut waiting = HashSet::new();
            let mut wanted = HashSet::new();
            for request in requests {
                let behind = waiting.contains(&request.step)
                    || (!wanted.is_empty() && request.rows().any(|row| wanted.contains(&row)));
                let over = if behind { request.expire() } else { request.attempt() };
                if over {
                    self.requests.lock().retain(|other| !Arc::ptr_eq(other, &request));
                } else {
                    waiting.insert(request.step);
                    wanted.extend(request.rows());
                }
            }
            if !waiting.is_empty() {
                self.tickets.gate.wait(seen, WAIT_SLICE);
            }
        }
    }

    /// Fail every waiting get and all later ones.
    fn end(&self, error: impl Fn() -> StoreError) {
        let mut waiting = self.requests.lock();
        self.stop.store(true, SeqCst);
        let requests = std::mem::take(&mut *waiting);
        drop(waiting);
        for request in requests {
            request.stand_down();
            request.finish(Err(error()));
        }
    }

    /// Wait for requests and return all of them, with the gate's generation from which on released clocks
    /// matter to them. `None` when the queue ends.
    fn next_round(&self) -> Option<(Vec<Arc<Request>>, u64)> {
        let mut requests = self.requests.lock();
        loop {
            if self.stop.load(SeqCst) {
                return None;
            }
            if !requests.is_empty() {
                return Some((requests.clone(), self.tickets.gate.generation()));
            }
            requests = self.arrived.wait(requests);
        }
    }
}
