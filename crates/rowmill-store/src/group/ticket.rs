//! Tickets: one training step in the public API.

use std::sync::Arc;

use rowmill_io::Process;

use super::group::Groups;
use crate::error::StoreError;
use crate::staleness::{TicketState, Tickets};

/// The ticket of one training step: the clocks of the rows that the step read. Dropping it releases them all.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) state: Arc<TicketState>,
    tickets: Arc<Tickets>,
    groups: Groups,
    process: Process,
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
            process: Process::current(),
        })
    }

    /// Number of the ticket. Later tickets have larger numbers.
    pub fn id(&self) -> u64 {
        self.state.id()
    }

    /// Rows whose clock this ticket has taken and not released. Rows deleted since then still count.
    pub fn rows_held(&self) -> usize {
        self.state.rows_held()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // In a forked child: the clocks belong to the parent's store.
        if !self.process.is_current() {
            return;
        }
        for (group, table, ids) in self.state.drain() {
            let group = Arc::clone(&self.groups.read()[group as usize]);
            group.release(self.state.id(), table, &ids);
        }
        self.tickets.close(self.state.id());
    }
}

/// Check that a ticket, if any, belongs to the store with these tickets.
///
/// # Errors
/// [`StoreError::OtherStore`].
pub(crate) fn check_ticket(tickets: &Tickets, ticket: Option<&Ticket>) -> Result<(), StoreError> {
    ticket.map_or(Ok(()), |ticket| tickets.check_own(&ticket.tickets, || format!("ticket {}", ticket.id())))
}
