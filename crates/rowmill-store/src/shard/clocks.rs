//! Who holds the rows of a shard: one clock per entry, four bits beside it, exact ones beyond.

use super::Shard;
use crate::index::{CLOCK_OVERFLOW, Place};
use crate::keys::Key;
use crate::seeded::{self, SeededBug};

/// What an acquired clock looked like, for statistics and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The clock was taken; this many gets were outstanding before.
    Taken(u32),
    /// The bound is reached.
    Blocked(u32),
}

impl Shard {
    /// Take the clock of an entry unless more than `bound` gets are outstanding.
    #[inline(always)]
    pub(crate) fn take_clock(&mut self, table: u32, id: u64, place: Place, bound: u8) -> Clock {
        match self.indexes[table as usize].take_clock(place, bound) {
            Some(outstanding) => Clock::Taken(u32::from(outstanding)),
            None => self.take_late_clock(table, id, place, bound),
        }
    }

    /// As [`Shard::take_clock`], of a row that is near its bound or beyond what its entry can count.
    #[cold]
    fn take_late_clock(&mut self, table: u32, id: u64, place: Place, bound: u8) -> Clock {
        let outstanding = self.outstanding(table, id, place);
        if outstanding > u32::from(bound) && !seeded::has(SeededBug::NoBound) {
            return Clock::Blocked(outstanding);
        }
        self.set_outstanding(table, id, place, outstanding + 1);
        Clock::Taken(outstanding)
    }

    /// Give one get of an entry back. Releasing what nobody holds (the row was deleted and born again)
    /// does nothing.
    #[inline(always)]
    pub(crate) fn release_clock(&mut self, table: u32, id: u64, place: Place) {
        if self.indexes[table as usize].give_clock(place) == CLOCK_OVERFLOW {
            self.release_late_clock(table, id, place);
        }
    }

    #[cold]
    fn release_late_clock(&mut self, table: u32, id: u64, place: Place) {
        let outstanding = self.outstanding(table, id, place);
        if outstanding > 0 {
            self.set_outstanding(table, id, place, outstanding - 1);
        }
    }

    /// Give one get of a row back, if there is such a row.
    pub(crate) fn release_clock_of(&mut self, key: &Key) {
        if let Some(found) = self.find(key) {
            self.release_clock(key.table, key.id, found.place);
        }
    }

    /// Outstanding gets of an entry.
    pub(crate) fn outstanding(&self, table: u32, id: u64, place: Place) -> u32 {
        match self.indexes[table as usize].clock(place) {
            CLOCK_OVERFLOW => {
                self.clocks_beyond.get(&(table, id)).copied().unwrap_or(u32::from(CLOCK_OVERFLOW))
            }
            exact => u32::from(exact),
        }
    }

    fn set_outstanding(&mut self, table: u32, id: u64, place: Place, outstanding: u32) {
        let index = &mut self.indexes[table as usize];
        if outstanding < u32::from(CLOCK_OVERFLOW) {
            if index.clock(place) == CLOCK_OVERFLOW {
                self.clocks_beyond.remove(&(table, id));
            }
            index.set_clock(place, outstanding as u8);
        } else {
            index.set_clock(place, CLOCK_OVERFLOW);
            self.clocks_beyond.insert((table, id), outstanding);
        }
    }
}
