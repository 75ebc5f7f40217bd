//! Gets that wait in a queue, not in the thread that asked.
//!
//! A worker that still owes a put must not wait for a clock: its own put may be what it would wait for. So
//! its get is queued, and a thread of the store takes all its clocks as soon as every row is within its
//! bound, or none of them; the worker collects the rows later. A queued get that cannot go on holds
//! nothing of its own, so the queue never blocks anybody; younger steps stand back for it as they do for a
//! thread that waits. Gets of one step are served in their order, and no get overtakes one of an older step
//! that wants one of its rows: the worker may collect the older one first.

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

/// Gets that may wait or have rows that were not collected; more are refused.
const GETS_MAX: u64 = 4096;
/// Bytes of a get beside its rows.
const GET_BYTES: usize = 1024;
/// The queue ends a get at the deadline of the store and says which row it waited for. A wait that goes on for so much
/// longer ends itself: the queue's thread is held up.
const HELD_UP: Duration = Duration::from_secs(1);
/// As good as no deadline, and no instant that far ahead is beyond what the clock can say.
const YEAR: Duration = Duration::from_hours(365 * 24);

/// A get that waits in the queue, or is done. Dropping it takes it out of the queue; clocks it has taken
/// belong to its ticket. It does not keep its step alive: once the ticket is dropped, it fails.
#[derive(Debug)]
pub struct QueuedGet {
    request: Arc<Request>,
    /// Memory of its rows.
    _claim: Claim,
    /// One of those that the queue counts.
    _counted: Arc<()>,
}

impl QueuedGet {
    /// Whether [`QueuedGet::wait`] would return at once.
    pub fn is_ready(&self) -> bool {
        self.request.table.store().check_process().is_err() || self.request.outcome.lock().is_some()
    }

    /// The weights of the ids, `dim` floats each, in their order. Waits until the get is through, at most
    /// until the deadline of the store.
    ///
    /// # Errors
    /// As [`Table::get_or_init`]; [`StoreError::StepOver`] when the ticket was dropped before the get went
    /// on, [`StoreError::QueueTimeout`] when it was not served in time, [`StoreError::Closed`] when the store was
    /// closed, [`StoreError::Poisoned`] when the queue's thread panicked.
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
            self.request.done.wait_until(&mut outcome, until);
        }
    }
}

impl Drop for QueuedGet {
    fn drop(&mut self) {
        if self.request.table.store().check_process().is_err() {
            return;
        }
        self.request.cancelled.store(true, SeqCst);
        // The queue forgets it, and its ticket, at its next look.
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
    /// The shard whose younger steps stand back for this get.
    waits_in: Mutex<Option<usize>, ranks::QueuedGet>,
}

impl Request {
    /// Take the rows if that is possible now; whether the request is over.
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

    /// End a get that stays behind others if its time is over; whether it is over.
    fn expire(&self) -> bool {
        let cancelled = self.cancelled.load(SeqCst);
        // It holds up no younger step meanwhile: the get before it may wait for a step that stands back for this one.
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

    /// The rows, unless that is not possible yet.
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

    /// Let others know which row this get waits for.
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
            // Younger steps that stood back may go on.
            cell.gate.open();
        }
    }

    fn call(&self) -> Call {
        (self.table.group_number(), self.lookup.serial)
    }

    /// The rows it asks for.
    fn rows(&self) -> impl Iterator<Item = Held> {
        let (group, table) = (self.table.group_number(), self.table.state().local);
        self.lookup.keys().iter().map(move |key| (group, table, key.id))
    }

    fn finish(&self, result: Result<Vec<f32>, StoreError>) {
        *self.outcome.lock() = Some(result);
        self.done.notify_all();
    }
}

/// The queue of a store, and its thread.
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
    /// As many others refer to this as there are gets that wait or were not collected.
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

    /// Queue a get. Its caller lets one push at a time.
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
        // The thread may wait for clocks that others of its gets need.
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
            // A panic of the thread was caught and has poisoned the store.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some((mut requests, seen)) = self.next_round() {
            // Stable: gets of one step keep their order.
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

    /// Fail every get that still waits, and those to come.
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

    /// All requests, once there are any, and the generation from which on released clocks matter to them;
    /// `None` at the end.
    fn next_round(&self) -> Option<(Vec<Arc<Request>>, u64)> {
        let mut requests = self.requests.lock();
        loop {
            if self.stop.load(SeqCst) {
                return None;
            }
            if !requests.is_empty() {
                return Some((requests.clone(), self.tickets.gate.generation()));
            }
            self.arrived.wait(&mut requests);
        }
    }
}
