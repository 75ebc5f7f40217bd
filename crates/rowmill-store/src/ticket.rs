//! One training step's hold on clocks.
//!
//! A ticket remembers which rows it holds, takes each row's clock once however often the step asks, and
//! gives every clock back when it is dropped: a step that failed leaks nothing. Who holds a row, and for
//! how long, is found by asking the tickets (errors only, so it may be slow).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rowmill_sync::{Gate, Mutex};

use crate::StoreError;
use crate::ranks;
use crate::store::Groups;

/// Steps that may be open at once.
const TICKETS_MAX: usize = 1024;

/// Serial number of no lookup: of rows that are a part of one's only.
pub(crate) const NO_LOOKUP: u64 = 0;

/// A row within a store: group, table within the group, id.
pub(crate) type Held = (u32, u32, u64);

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
    /// When what the step learns from happened, in seconds.
    event_time: Option<u64>,
    holds: Mutex<HashMap<(u32, u32), Hold>, ranks::TicketHolds>,
    /// Rows of a call that is still taking clocks, written before it waits.
    partial: Mutex<Vec<Held>, ranks::TicketPartial>,
    /// Row this ticket waits for.
    waits_for: Mutex<Option<Held>, ranks::TicketWait>,
}

impl TicketState {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn event_time(&self) -> Option<u64> {
        self.event_time
    }

    fn holds(&self, row: Held) -> bool {
        self.holds.lock().get(&(row.0, row.1)).is_some_and(|hold| hold.contains(row.2))
            || self.partial.lock().contains(&row)
    }

    /// Which of `ids` the ticket does not hold yet; `None` when it holds none of them.
    pub(crate) fn fresh(&self, group: u32, table: u32, ids: &[u64]) -> Option<Vec<bool>> {
        let holds = self.holds.lock();
        let hold = holds.get(&(group, table))?;
        let held: HashSet<u64> = match hold {
            Hold::Lookup { ids, .. } => ids.iter().copied().collect(),
            Hold::Rows(ids) => ids.clone(),
        };
        Some(ids.iter().map(|id| !held.contains(id)).collect())
    }

    /// Remember rows whose clocks were taken.
    pub(crate) fn add(&self, group: u32, table: u32, serial: u64, ids: &Arc<[u64]>) {
        let mut holds = self.holds.lock();
        match holds.remove(&(group, table)) {
            None => holds.insert((group, table), Hold::Lookup { serial, ids: Arc::clone(ids) }),
            Some(hold) => {
                let mut rows = hold.into_rows();
                rows.extend(ids.iter().copied());
                holds.insert((group, table), Hold::Rows(rows))
            }
        };
    }

    /// Forget the rows among `ids` and say which of them were held. `serial` is that of the lookup whose
    /// unique ids these are, if they are one's.
    pub(crate) fn take(&self, group: u32, table: u32, serial: Option<u64>, ids: &[u64]) -> Released {
        let mut holds = self.holds.lock();
        match holds.remove(&(group, table)) {
            None => Released::None,
            // Training puts back what it got: the same ids in the same order, seen without looking them up.
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

    pub(crate) fn set_partial(&self, rows: Vec<Held>) {
        *self.partial.lock() = rows;
    }

    pub(crate) fn set_waits_for(&self, row: Option<Held>) {
        *self.waits_for.lock() = row;
    }

    fn drain(&self) -> Vec<(u32, u32, Vec<u64>)> {
        let holds = std::mem::take(&mut *self.holds.lock());
        holds
            .into_iter()
            .map(|((group, table), hold)| (group, table, hold.into_rows().into_iter().collect()))
            .collect()
    }
}

/// Which of a call's rows give a clock back.
#[derive(Debug)]
pub(crate) enum Released {
    /// None of them.
    None,
    /// Every one.
    All,
    /// Those marked, by position.
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
    /// Where the store is.
    location: String,
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Weak<TicketState>>, ranks::Tickets>,
    /// Opened whenever clocks are released anywhere, for the gets that wait in the queue.
    pub(crate) gate: Gate,
}

impl Tickets {
    /// Those of the store in `location`.
    pub(crate) fn new(location: String) -> Self {
        Self { location, ..Self::default() }
    }

    /// Check that a ticket, table or lookup is of this store, given the tickets of its own store.
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

    /// Check that a ticket is of this store.
    pub(crate) fn check_ticket(&self, ticket: Option<&Ticket>) -> Result<(), StoreError> {
        ticket.map_or(Ok(()), |ticket| self.check_own(&ticket.tickets, || format!("ticket {}", ticket.id())))
    }

    fn issue(&self, event_time: Option<u64>) -> Result<Arc<TicketState>, StoreError> {
        let mut open = self.open.lock();
        if open.len() >= TICKETS_MAX {
            return Err(StoreError::TooManySteps { open: open.len(), limit: TICKETS_MAX });
        }
        let state = Arc::new(TicketState {
            id: self.next.fetch_add(1, Relaxed) + 1,
            born: Instant::now(),
            event_time,
            holds: Mutex::default(),
            partial: Mutex::default(),
            waits_for: Mutex::default(),
        });
        open.insert(state.id, Arc::downgrade(&state));
        Ok(state)
    }

    /// Number of the youngest ticket.
    pub(crate) fn issued(&self) -> u64 {
        self.next.load(Relaxed)
    }

    fn all(&self) -> Vec<Arc<TicketState>> {
        self.open.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Tickets that hold a row, oldest first, with their age.
    pub(crate) fn holders(&self, row: Held) -> Vec<(u64, Duration)> {
        self.all()
            .iter()
            .filter(|ticket| ticket.holds(row))
            .map(|ticket| (ticket.id, ticket.born.elapsed()))
            .collect()
    }

    /// Whether `waiter` is the youngest of a circle of tickets that wait for rows of each other.
    pub(crate) fn must_give_way(&self, waiter: &TicketState) -> bool {
        let tickets = self.all();
        let next = |ticket: &TicketState| -> Vec<Arc<TicketState>> {
            let Some(row) = *ticket.waits_for.lock() else { return Vec::new() };
            tickets.iter().filter(|other| other.id != ticket.id && other.holds(row)).cloned().collect()
        };
        // Depth-first along "waits for a row held by"; a path back to the waiter is a circle. Only
        // circles whose members are all older count: the youngest of each circle gives way.
        let mut seen = HashSet::new();
        let mut path = next(waiter);
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

/// One training step: the clocks of the rows it read. Dropping the ticket gives them all back.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) state: Arc<TicketState>,
    tickets: Arc<Tickets>,
    groups: Groups,
}

impl Ticket {
    pub(crate) fn new(
        tickets: &Arc<Tickets>,
        groups: &Groups,
        event_time: Option<u64>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            state: tickets.issue(event_time)?,
            tickets: Arc::clone(tickets),
            groups: Arc::clone(groups),
        })
    }

    /// Number of the ticket: later ones are larger.
    pub fn id(&self) -> u64 {
        self.state.id
    }

    /// Rows whose clock this ticket holds.
    pub fn rows_held(&self) -> usize {
        let holds = self.state.holds.lock();
        holds
            .values()
            .map(|hold| match hold {
                Hold::Lookup { ids, .. } => ids.len(),
                Hold::Rows(ids) => ids.len(),
            })
            .sum()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        for (group, table, ids) in self.state.drain() {
            let group = Arc::clone(&self.groups.read()[group as usize]);
            group.release(table, &ids);
        }
        self.tickets.open.lock().remove(&self.state.id);
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
