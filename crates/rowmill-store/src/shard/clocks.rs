//! Who holds the rows of a shard: one clock per entry, four bits beside it, exact ones beyond.
//!
//! Deleting a row voids the holds on it: a row that is born with the same id later starts with clock zero. Steps
//! that held the deleted row still have it in their tickets, and will give it back. The shard must not take this
//! for the clock of the new row, which other steps hold. So it keeps, for each id, the number of void holds that
//! were not given back yet, and the steps that took the clock of the new row since. A step that is not among them
//! gives back a void hold. One that is among them gives back its clock.
//!
//! Taking, giving back and deleting happen under the lock of the shard, so these counts are exact. The tickets
//! cannot be: a call takes clocks before it records them, and takes rows off the record before it gives them back.
//! A generation beside each clock would need more bits in every entry, and in every hold.
//!
//! While no hold is void, which is nearly always, this costs the test of a length. There are at most as many void
//! holds as open steps have holds. An eviction voids none, because it leaves rows that are held
//! ([`crate::row_lifetime`]). Neither clocks nor void holds are saved: tickets end with their store.

use rowmill_index::{CLOCK_OVERFLOW, EntryRef};

use super::shard::Shard;
use crate::seeded::{self, SeededBug};
use crate::table::Key;

/// The holds of an id whose row was deleted.
#[derive(Debug, Default)]
pub(super) struct VoidHolds {
    /// Void holds that were not given back yet.
    count: u32,
    /// Tickets that hold the row born since, once for each hold.
    valid: Vec<u64>,
}

/// What an acquired clock looked like, for statistics and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The clock was taken; this many gets were outstanding before.
    Taken(u32),
    /// The bound is reached.
    Blocked(u32),
}

impl Shard {
    /// Take the clock of an entry for a ticket unless more than `bound` gets are outstanding.
    #[inline(always)]
    pub(crate) fn take_clock(&mut self, ticket: u64, key: &Key, entry: EntryRef, bound: u8) -> Clock {
        let clock = match self.indexes[key.table as usize].take_clock(entry, bound) {
            Some(outstanding) => Clock::Taken(u32::from(outstanding)),
            None => self.take_late_clock(key, entry, bound),
        };
        if !self.void_holds.is_empty() && matches!(clock, Clock::Taken(_)) {
            self.note_hold(ticket, key);
        }
        clock
    }

    /// As [`Shard::take_clock`], of a row that is near its bound or beyond what its entry can count.
    #[cold]
    pub(super) fn take_late_clock(&mut self, key: &Key, entry: EntryRef, bound: u8) -> Clock {
        let outstanding = self.outstanding(key.table, key.id, entry);
        if outstanding > u32::from(bound) && !seeded::has(SeededBug::NoBound) {
            return Clock::Blocked(outstanding);
        }
        self.set_outstanding(key.table, key.id, entry, outstanding + 1);
        Clock::Taken(outstanding)
    }

    /// Give back a hold of a ticket on a row: its clock, unless the hold is void.
    #[inline(always)]
    pub(crate) fn release_clock(&mut self, ticket: u64, key: &Key, entry: EntryRef) {
        if !self.void_holds.is_empty() && self.end_hold(ticket, key) {
            return;
        }
        if self.indexes[key.table as usize].give_clock(entry) == CLOCK_OVERFLOW {
            self.release_late_clock(key, entry);
        }
    }

    #[cold]
    pub(super) fn release_late_clock(&mut self, key: &Key, entry: EntryRef) {
        let outstanding = self.outstanding(key.table, key.id, entry);
        self.set_outstanding(key.table, key.id, entry, outstanding - 1);
    }

    /// As [`Shard::release_clock`], of a row that may be deleted.
    pub(crate) fn release_clock_of(&mut self, ticket: u64, key: &Key) {
        match self.find(key) {
            Some(found) => self.release_clock(ticket, key, found.entry),
            None => drop(self.end_hold(ticket, key)),
        }
    }

    // ------------------------------------------------------------------ void holds

    /// The row of an entry is about to be deleted.
    pub(super) fn void_holds_of(&mut self, table: u32, id: u64, entry: EntryRef) {
        let outstanding = self.outstanding(table, id, entry);
        self.clocks_beyond.remove(&(table, id));
        if outstanding > 0 && !seeded::has(SeededBug::ForeignClock) {
            let void = self.void_holds.entry((table, id)).or_default();
            void.count += outstanding;
            void.valid.clear();
        }
    }

    /// Whether the hold of a ticket on a row is void, given that it has one.
    #[inline(always)]
    pub(crate) fn may_be_void(&self, ticket: u64, key: &Key) -> bool {
        !self.void_holds.is_empty()
            && self.void_holds.get(&(key.table, key.id)).is_some_and(|void| !void.valid.contains(&ticket))
    }

    /// A void hold of an id was given back.
    pub(crate) fn end_void_hold(&mut self, key: &Key) {
        let of_id = (key.table, key.id);
        let void = self.void_holds.get_mut(&of_id).expect("the hold is void");
        void.count -= 1;
        if void.count == 0 {
            self.void_holds.remove(&of_id);
        }
    }

    /// A ticket has taken the clock of a row.
    #[cold]
    pub(super) fn note_hold(&mut self, ticket: u64, key: &Key) {
        if let Some(void) = self.void_holds.get_mut(&(key.table, key.id)) {
            void.valid.push(ticket);
        }
    }

    /// A ticket gives back a hold; whether it was void.
    #[cold]
    pub(super) fn end_hold(&mut self, ticket: u64, key: &Key) -> bool {
        let Some(void) = self.void_holds.get_mut(&(key.table, key.id)) else { return false };
        if let Some(position) = void.valid.iter().position(|&other| other == ticket) {
            void.valid.swap_remove(position);
            return false;
        }
        self.end_void_hold(key);
        true
    }

    // ------------------------------------------------------------------ counting

    /// Outstanding gets of an entry.
    pub(crate) fn outstanding(&self, table: u32, id: u64, entry: EntryRef) -> u32 {
        match self.indexes[table as usize].clock(entry) {
            CLOCK_OVERFLOW => {
                self.clocks_beyond.get(&(table, id)).copied().unwrap_or(u32::from(CLOCK_OVERFLOW))
            }
            exact => u32::from(exact),
        }
    }

    pub(super) fn set_outstanding(&mut self, table: u32, id: u64, entry: EntryRef, outstanding: u32) {
        let index = &mut self.indexes[table as usize];
        if outstanding < u32::from(CLOCK_OVERFLOW) {
            if index.clock(entry) == CLOCK_OVERFLOW {
                self.clocks_beyond.remove(&(table, id));
            }
            index.set_clock(entry, outstanding as u8);
        } else {
            index.set_clock(entry, CLOCK_OVERFLOW);
            self.clocks_beyond.insert((table, id), outstanding);
        }
    }
}
