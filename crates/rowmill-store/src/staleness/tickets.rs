//! Tickets: the clocks that one training step holds.
//!
//! A ticket records which rows it holds and takes each row's clock once, even if the step looks the row up
//! repeatedly. Dropping it releases every clock, so a failed step leaks none. To report which step holds a
//! row, and for how long, all tickets are searched; this happens only for errors, so it may be slow.
//!
//! Several threads may use one ticket. A call records its rows only after it has taken their clocks. It takes
//! the clocks of all rows that were not recorded when it checked. So two calls that ask for one row at the
//! same time take its clock twice; the second to record the row finds it recorded and releases its own clock.
//! At the bound, the second waits until the first has recorded the row. So a row is recorded only while the
//! ticket holds its clock, and a read never relies on a clock that another call still waits for.
//!
//! Lock order: the locks of a ticket are leaves. They are taken under a shard's lock, and no lock is taken
//! under them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rowmill_sync::{Gate, Mutex, ranks};

use crate::error::StoreError;

/// Maximum number of open steps.
const TICKETS_MAX: usize = 1024;

/// Maximum rows whose clocks one step may hold: half a GiB of ids.
const ROWS_MAX: usize = 1 << 26;

/// The serial number for rows that are not all the rows of a lookup.
pub(crate) const NO_LOOKUP: u64 = 0;

/// A row within a store: group, table within the group, id.
pub(crate) type Held = (u32, u32, u64);

/// A call of a step: its group and the number of its lookup.
pub(crate) type Call = (u32, u64);

/// A waiting call.
#[derive(Debug)]
struct Wait {
    /// The row beyond its bound.
    row: Held,
    /// Rows whose clocks the call has already taken, in earlier shards.
    taken: Vec<Held>,
}

/// The rows of one table that a ticket holds.
#[derive(Debug)]
pub(crate) enum Hold {
    /// Exactly the rows of lookup number `serial`.
    Lookup {
        /// Number of the lookup.
        serial: u64,
        /// Its unique ids.
        ids: Arc<[u64]>,
    },
    /// Rows of several calls.
    Rows(HashSet<u64>),
}

impl Hold {
    fn contains(&self, id: u64) -> bool {
        match self {
            Self::Lookup { ids, .. } => ids.contains(&id),
            Self::Rows(ids) => ids.contains(&id),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Lookup { ids, .. } => ids.len(),
            Self::Rows(ids) => ids.len(),
        }
    }

    fn into_rows(self) -> HashSet<u64> {
        match self {
            Self::Lookup { ids, .. } => ids.iter().copied().collect(),
            Self::Rows(ids) => ids,
        }
    }
}

#[derive(Debug)]
pub(crate) struct TicketState {
    id: u64,
    born: Instant,
    /// Event time of the step, in seconds.
    event_time: Option<u64>,
    holds: Mutex<HashMap<(u32, u32), Hold>, ranks::TicketHolds>,
    /// Calls that wait for a clock: at most one per thread and queued get.
    waits: Mutex<HashMap<Call, Wait>, ranks::TicketWaits>,
}

impl TicketState {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn event_time(&self) -> Option<u64> {
        self.event_time
    }

    /// Whether the row is recorded as held.
    pub(crate) fn has_recorded(&self, row: Held) -> bool {
        self.holds.lock().get(&(row.0, row.1)).is_some_and(|hold| hold.contains(row.2))
    }

    /// Whether the ticket, or one of its waiting calls, holds the row.
    fn holds(&self, row: Held) -> bool {
        self.has_recorded(row) || self.waits.lock().values().any(|wait| wait.taken.contains(&row))
    }

    /// Number of rows recorded as held.
    pub(crate) fn rows_held(&self) -> usize {
        self.holds.lock().values().map(Hold::len).sum()
    }

    /// Check that the ticket may hold `rows` more rows.
    pub(crate) fn check_room(&self, rows: usize) -> Result<(), StoreError> {
        let held = self.rows_held();
        if rows <= ROWS_MAX.saturating_sub(held) {
            return Ok(());
        }
        Err(StoreError::TooManyRows { ticket: self.id, held, wanted: rows, limit: ROWS_MAX })
    }

    /// Which of `ids` the ticket does not hold yet. `None` when it holds none of them.
    pub(crate) fn fresh(&self, group: u32, table: u32, ids: &[u64]) -> Option<Vec<bool>> {
        let holds = self.holds.lock();
        let hold = holds.get(&(group, table))?;
        let held: HashSet<u64> = match hold {
            Hold::Lookup { ids, .. } => ids.iter().copied().collect(),
            Hold::Rows(ids) => ids.clone(),
        };
        Some(ids.iter().map(|id| !held.contains(id)).collect())
    }

    /// Record rows whose clocks a call has taken. Returns the rows that another call has recorded meanwhile;
    /// the caller must release their clocks.
    pub(crate) fn add(&self, group: u32, table: u32, serial: u64, ids: &Arc<[u64]>) -> Vec<u64> {
        let mut holds = self.holds.lock();
        let Some(hold) = holds.remove(&(group, table)) else {
            holds.insert((group, table), Hold::Lookup { serial, ids: Arc::clone(ids) });
            return Vec::new();
        };
        let mut rows = hold.into_rows();
        let twice = ids.iter().copied().filter(|&id| !rows.insert(id)).collect();
        holds.insert((group, table), Hold::Rows(rows));
        twice
    }

    /// Remove `ids` from the record and return which of them were held. If these are the unique ids of a
    /// lookup, `serial` is its serial number.
    pub(crate) fn take(&self, group: u32, table: u32, serial: Option<u64>, ids: &[u64]) -> Released {
        let mut holds = self.holds.lock();
        match holds.remove(&(group, table)) {
            None => Released::None,
            // The usual case: training puts back the same ids in the same order. It is detected without
            // searching.
            Some(Hold::Lookup { serial: own, ids: held }) if serial == Some(own) || *held == *ids => {
                Released::All
            }
            Some(hold) => {
                let mut rows = hold.into_rows();
                let released = ids.iter().map(|id| rows.remove(id)).collect();
                if !rows.is_empty() {
                    holds.insert((group, table), Hold::Rows(rows));
                }
                Released::Some(released)
            }
        }
    }

    /// Whether the ticket holds no row from an earlier call.
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.lock().is_empty()
    }

    /// Record that a call waits for a row. `taken` are the rows whose clocks it has.
    pub(crate) fn wait_for(&self, call: Call, row: Held, taken: impl FnOnce() -> Vec<Held>) {
        self.waits.lock().entry(call).or_insert_with(|| Wait { row, taken: taken() }).row = row;
    }

    /// A call no longer waits.
    pub(crate) fn end_wait(&self, call: Call) {
        self.waits.lock().remove(&call);
    }

    /// Take all recorded rows, by group and table. Afterwards none is recorded.
    pub(crate) fn drain(&self) -> Vec<(u32, u32, Vec<u64>)> {
        let holds = std::mem::take(&mut *self.holds.lock());
        holds
            .into_iter()
            .map(|((group, table), hold)| (group, table, hold.into_rows().into_iter().collect()))
            .collect()
    }
}

/// The clocks that a change of rows releases.
#[derive(Debug)]
pub(crate) struct Release {
    /// Number of the ticket that took them.
    pub(crate) ticket: u64,
    pub(crate) rows: Released,
}

impl Release {
    /// Releases no clock.
    pub(crate) const NOTHING: Self = Self { ticket: 0, rows: Released::None };
}

/// Which rows of a call release a clock.
#[derive(Debug)]
pub(crate) enum Released {
    /// None of them.
    None,
    /// Every one.
    All,
    /// The marked ones, by position.
    Some(Vec<bool>),
}

impl Released {
    #[inline]
    pub(crate) fn contains(&self, position: u32) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(marks) => marks[position as usize],
        }
    }
}

/// All open tickets of a store.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    /// Location of the store, for errors.
    location: String,
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Weak<TicketState>>, ranks::Tickets>,
    /// Opened whenever any clock is released, for the gets that wait in the queue.
    pub(crate) gate: Gate,
}

impl Tickets {
    /// The tickets of the store at `location`.
    pub(crate) fn new(location: String) -> Self {
        Self { location, ..Self::default() }
    }

    /// Check that a ticket, table or lookup belongs to this store. `other` are the tickets of its store.
    pub(crate) fn check_own(&self, other: &Self, what: impl FnOnce() -> String) -> Result<(), StoreError> {
        if std::ptr::eq(self, other) {
            return Ok(());
        }
        Err(StoreError::OtherStore {
            what: what(),
            other: other.location.clone(),
            location: self.location.clone(),
        })
    }

    /// Open a ticket for a step that learns from events at `event_time`.
    ///
    /// # Errors
    /// [`StoreError::TooManySteps`].
    pub(crate) fn issue(&self, event_time: Option<u64>) -> Result<Arc<TicketState>, StoreError> {
        let mut open = self.open.lock();
        if open.len() >= TICKETS_MAX {
            return Err(StoreError::TooManySteps { open: open.len(), limit: TICKETS_MAX });
        }
        let state = Arc::new(TicketState {
            id: self.next.fetch_add(1, Relaxed) + 1,
            born: Instant::now(),
            event_time,
            holds: Mutex::default(),
            waits: Mutex::default(),
        });
        open.insert(state.id, Arc::downgrade(&state));
        Ok(state)
    }

    /// Remove a ticket that was dropped.
    pub(crate) fn close(&self, id: u64) {
        self.open.lock().remove(&id);
    }

    /// Number of the youngest ticket issued.
    pub(crate) fn issued(&self) -> u64 {
        self.next.load(Relaxed)
    }

    fn all(&self) -> Vec<Arc<TicketState>> {
        self.open.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Tickets that hold a row, oldest first, with their ages.
    pub(crate) fn holders(&self, row: Held) -> Vec<(u64, Duration)> {
        self.all()
            .iter()
            .filter(|ticket| ticket.holds(row))
            .map(|ticket| (ticket.id, ticket.born.elapsed()))
            .collect()
    }

    /// Whether `waiter`, which waits for `row`, is the youngest ticket in a cycle of tickets that wait for
    /// each other's rows.
    pub(crate) fn must_give_way(&self, waiter: &TicketState, row: Held) -> bool {
        let tickets = self.all();
        let holders = |ticket: &TicketState, rows: &[Held]| -> Vec<Arc<TicketState>> {
            let holds =
                |other: &&Arc<TicketState>| other.id != ticket.id && rows.iter().any(|&row| other.holds(row));
            tickets.iter().filter(holds).cloned().collect()
        };
        let next = |ticket: &TicketState| {
            let rows: Vec<Held> = ticket.waits.lock().values().map(|wait| wait.row).collect();
            holders(ticket, &rows)
        };
        // Depth-first search along "waits for a row held by". A path back to the waiter is a cycle. Younger
        // tickets are skipped, because only the youngest of a cycle is cancelled.
        let mut seen = HashSet::new();
        let mut path = holders(waiter, &[row]);
        while let Some(ticket) = path.pop() {
            if ticket.id > waiter.id || !seen.insert(ticket.id) {
                continue;
            }
            let further = next(&ticket);
            if further.iter().any(|other| other.id == waiter.id) {
                return true;
            }
            path.extend(further);
        }
        false
    }

    /// Number of open tickets.
    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_come_back_as_they_went_are_all_given_back() {
        let ticket = Tickets::default().issue(None).unwrap();
        let got: Arc<[u64]> = [7, 3, 9].into();
        ticket.add(0, 1, 5, &got);
        assert!(matches!(ticket.take(0, 1, None, &[7, 3, 9]), Released::All));
        assert!(ticket.is_empty());
    }

    #[test]
    fn rows_that_are_recorded_twice_are_returned() {
        let ticket = Tickets::default().issue(None).unwrap();
        assert!(ticket.add(0, 1, 5, &[7, 3, 9].into()).is_empty());
        assert_eq!(ticket.add(0, 1, 6, &[4, 9, 7].into()), [9, 7]);
        assert!(ticket.add(0, 2, 6, &[9].into()).is_empty());
        assert_eq!(ticket.rows_held(), 5);
    }

    #[test]
    fn a_step_holds_so_many_rows_and_no_more() {
        let ticket = Tickets::default().issue(None).unwrap();
        ticket.add(0, 1, 5, &[7, 3, 9].into());
        ticket.check_room(ROWS_MAX - 3).unwrap();
        for rows in [ROWS_MAX - 2, usize::MAX] {
            let error = ticket.check_room(rows).unwrap_err();
            assert!(
                matches!(error, StoreError::TooManyRows { held: 3, wanted, .. } if wanted == rows),
                "{error}"
            );
        }
    }

    #[test]
    fn so_many_steps_are_open_and_no_more() {
        let tickets = Tickets::default();
        let _open: Vec<_> = (0..TICKETS_MAX).map(|_| tickets.issue(None).unwrap()).collect();
        assert!(matches!(tickets.issue(None), Err(StoreError::TooManySteps { open: TICKETS_MAX, .. })));
    }

    #[test]
    fn ids_in_another_order_or_in_parts_are_looked_up() {
        let ticket = Tickets::default().issue(None).unwrap();
        ticket.add(0, 1, 5, &[7, 3, 9].into());
        let Released::Some(marks) = ticket.take(0, 1, None, &[3, 4, 7]) else { panic!("marked one by one") };
        assert_eq!(marks, [true, false, true]);
        assert!(ticket.holds((0, 1, 9)) && !ticket.holds((0, 1, 7)));
        assert!(
            matches!(ticket.take(0, 1, Some(6), &[9, 7]), Released::Some(marks) if marks == [true, false])
        );
        assert!(ticket.is_empty());
        assert!(matches!(ticket.take(0, 1, None, &[9]), Released::None));
    }
}
