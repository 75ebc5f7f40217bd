//! Clocks of the rows of a shard: four bits beside each index entry, and exact counts for larger values.
//!
//! Deleting a row voids the holds on it: a row created later with the same id starts with clock zero. Steps
//! that held the deleted row still have it in their tickets and will release it. The shard must not take this
//! for a release of the new row's clock, which other steps hold. So for each such id it keeps the number of
//! void holds not released yet, and the steps that took the clock of the new row. A release by one of these
//! steps releases the clock. A release by any other step ends a void hold.
//!
//! Clocks are taken, released and voided under the lock of the shard, so these counts are exact. The tickets'
//! records are not exact: a call takes clocks before it records them, and removes rows from the record before
//! it releases them. The alternative, a generation beside each clock, would need more bits in every entry and
//! every hold.
//!
//! Nearly always no hold is void, and then this costs one check for an empty map. There are at most as many
//! void holds as open steps have holds. An eviction voids none, because it leaves rows that are held
//! ([`crate::row_lifetime`]). Neither clocks nor void holds are saved: tickets end with their store.

use rowmill_index::{CLOCK_OVERFLOW, EntryRef};

use super::shard::Shard;
use crate::seeded::{self, SeededBug};
use crate::table::Key;

/// The void holds of an id whose row was deleted.
#[derive(Debug, Default)]
pub(super) struct VoidHolds {
    /// Number of void holds that were not released yet.
    count: u32,
    /// Tickets that hold the new row with this id, once per hold.
    valid: Vec<u64>,
}

/// The result of taking a clock, for statistics and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The clock was taken; this many gets were outstanding before.
    Taken(u32),
    /// The staleness bound is reached; this many gets are outstanding.
    Blocked(u32),
}

impl Shard {
    /// Take the clock of an entry for a ticket, unless more than `bound` gets are outstanding.
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

    /// As [`Shard::take_clock`], for a clock near its bound or too large for the bits of the entry.
    #[cold]
    pub(super) fn take_late_clock(&mut self, key: &Key, entry: EntryRef, bound: u8) -> Clock {
        let outstanding = self.outstanding(key.table, key.id, entry);
        if outstanding > u32::from(bound) && !seeded::has(SeededBug::NoBound) {
            return Clock::Blocked(outstanding);
        }
        self.set_outstanding(key.table, key.id, entry, outstanding + 1);
        Clock::Taken(outstanding)
    }

    /// Release a ticket's hold on a row: release its clock, unless the hold is void.
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

    /// As [`Shard::release_clock`], for a row that may have been deleted.
    pub(crate) fn release_clock_of(&mut self, ticket: u64, key: &Key) {
        match self.find(key) {
            Some(found) => self.release_clock(ticket, key, found.entry),
            None => drop(self.end_hold(ticket, key)),
        }
    }

    // ------------------------------------------------------------------ void holds

    /// Void the holds of a row that is about to be deleted.
    pub(super) fn void_holds_of(&mut self, table: u32, id: u64, entry: EntryRef) {
        let outstanding = self.outstanding(table, id, entry);
        self.clocks_beyond.remove(&(table, id));
        if outstanding > 0 && !seeded::has(SeededBug::ForeignClock) {
            let void = self.void_holds.entry((table, id)).or_default();
            void.count += outstanding;
            void.valid.clear();
        }
    }

    /// Whether a ticket's hold on a row is void, given that the ticket has one.
    #[inline(always)]
    pub(crate) fn may_be_void(&self, ticket: u64, key: &Key) -> bool {
        !self.void_holds.is_empty()
            && self.void_holds.get(&(key.table, key.id)).is_some_and(|void| !void.valid.contains(&ticket))
    }

    /// A void hold of an id was released.
    pub(crate) fn end_void_hold(&mut self, key: &Key) {
        let of_id = (key.table, key.id);
        let void = self.void_holds.get_mut(&of_id).expect("the hold is void");
        void.count -= 1;
        if void.count == 0 {
            self.void_holds.remove(&of_id);
        }
    }

    /// Record that a ticket has taken the clock of a row.
    #[cold]
    pub(super) fn note_hold(&mut self, ticket: u64, key: &Key) {
        if let Some(void) = self.void_holds.get_mut(&(key.table, key.id)) {
            void.valid.push(ticket);
        }
    }

    /// A ticket releases a hold. Returns whether the hold was void.
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

    /// Number of outstanding gets of an entry.
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
