//! An index for ids `0..rows`: two arrays addressed by the id itself.
//!
//! The ids of one shard are those with the shard's low bits; the rest of the id is the position.
//!
//! While every id has a row in memory, and the rows are in consecutive slots in the order of their ids, the table is an
//! array: readers compute the slot from the id and read no index entry ([`DirectIndex::array`]).

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::flags::{self, FREQUENCY_MAX};
use super::location::{EntryRef, Location};
use super::mmap_array::MmapArray;
use crate::prefetch::prefetch;

/// Ids of one (shard, dense table) to locations and flags.
#[derive(Debug)]
pub struct DirectIndex {
    /// [`Location::stored`], or zero for an id without a row.
    locations: MmapArray<u32>,
    flags: MmapArray<AtomicU8>,
    shard: u64,
    shard_bits: u32,
    len: usize,
    /// Entries whose row is in memory.
    resident: usize,
    /// The slot that position 0 has if the rows in memory lie in the order of their ids, judged by the first of them.
    /// Modulo 2^32.
    first_slot: u32,
    /// Entries whose row is in slot `first_slot + position`.
    in_order: usize,
}

impl DirectIndex {
    /// An index for the ids of `0..rows` that belong to `shard` out of `shards`.
    pub(crate) fn new(rows: u64, shard: usize, shards: usize) -> Self {
        let local = local_rows(rows, shard, shards);
        Self {
            locations: MmapArray::new(local),
            flags: MmapArray::new(local),
            shard: shard as u64,
            shard_bits: shards.ilog2(),
            len: 0,
            resident: 0,
            first_slot: 0,
            in_order: 0,
        }
    }

    /// The slot of position 0, if every id of the shard has a row in memory and position `n` has the slot `n` behind.
    #[inline]
    pub(crate) fn array(&self) -> Option<u32> {
        (self.in_order == self.locations.len()).then_some(self.first_slot)
    }

    /// The words of all entries, by position in the shard; zero for an id without a row.
    #[inline]
    pub(crate) fn locations(&self) -> &[u32] {
        &self.locations
    }

    /// Start loading the entry of `id`.
    #[inline]
    pub(crate) fn prefetch(&self, id: u64) {
        let local = self.local(id);
        prefetch(self.locations.as_ptr().wrapping_add(local));
        prefetch(self.flags.as_ptr().wrapping_add(local));
    }

    /// Where the entry of `id` is; none for an id without a row or out of range.
    #[inline]
    pub(crate) fn find(&self, id: u64) -> Option<EntryRef> {
        let local = self.local(id);
        match self.locations.get(local) {
            Some(&location) if location != 0 => Some(entry(local)),
            _ => None,
        }
    }

    /// Where the row of an entry is.
    #[inline]
    pub(crate) fn location(&self, entry: EntryRef) -> Location {
        Location::from_stored(self.locations[local_of(entry)])
    }

    /// Say that the row of an entry has moved.
    #[inline]
    pub(crate) fn set_location(&mut self, entry: EntryRef, location: Location) {
        debug_assert_ne!(self.locations[local_of(entry)], 0, "the entry has no entry");
        self.set_word(local_of(entry), location.stored());
    }

    /// How often the row was touched, up to [`FREQUENCY_MAX`].
    #[inline]
    pub(crate) fn frequency(&self, entry: EntryRef) -> u8 {
        flags::frequency(self.flags[local_of(entry)].load(Relaxed).into())
    }

    /// Count an access, as [`HashIndex::touch`](super::HashIndex::touch) does.
    #[inline]
    pub(crate) fn touch(&self, entry: EntryRef) {
        let word = &self.flags[local_of(entry)];
        let bits = word.load(Relaxed);
        if flags::frequency(bits.into()) < FREQUENCY_MAX {
            word.store(bits + 1, Relaxed);
        }
    }

    /// Replace the frequency.
    #[inline]
    pub(crate) fn set_frequency(&mut self, entry: EntryRef, frequency: u8) {
        let word = self.flags[local_of(entry)].get_mut();
        *word = flags::with_frequency((*word).into(), 0, frequency) as u8;
    }

    /// The clock of the row, or [`CLOCK_OVERFLOW`](super::CLOCK_OVERFLOW).
    #[inline]
    pub(crate) fn clock(&self, entry: EntryRef) -> u8 {
        flags::clock(self.flags[local_of(entry)].load(Relaxed).into())
    }

    /// As [`TableIndex::take_clock`](super::TableIndex::take_clock).
    #[inline(always)]
    pub(crate) fn take_clock(&mut self, entry: EntryRef, bound: u8) -> Option<u8> {
        let word = self.flags[local_of(entry)].get_mut();
        let clock = flags::clock((*word).into());
        flags::may_take(clock, bound).then(|| {
            *word += flags::one_taken(0) as u8;
            clock
        })
    }

    /// As [`TableIndex::give_clock`](super::TableIndex::give_clock).
    #[inline(always)]
    pub(crate) fn give_clock(&mut self, entry: EntryRef) -> u8 {
        let word = self.flags[local_of(entry)].get_mut();
        let clock = flags::clock((*word).into());
        if flags::may_give(clock) {
            *word -= flags::one_taken(0) as u8;
        }
        clock
    }

    /// Replace the clock.
    #[inline]
    pub(crate) fn set_clock(&mut self, entry: EntryRef, clock: u8) {
        let word = self.flags[local_of(entry)].get_mut();
        *word = flags::with_clock((*word).into(), 0, clock) as u8;
    }

    /// Add an id that is not there, with frequency and clock zero.
    ///
    /// # Panics
    /// When the id is out of range; callers check whole batches before they change anything.
    #[inline]
    pub(crate) fn insert(&mut self, id: u64, location: Location) -> EntryRef {
        let local = self.local(id);
        debug_assert_eq!(self.locations[local], 0, "id {id} is already in the index");
        self.set_word(local, location.stored());
        self.len += 1;
        entry(local)
    }

    /// Remove an id with its flags; returns where its row was.
    #[inline]
    pub(crate) fn remove(&mut self, id: u64) -> Option<Location> {
        let entry = self.find(id)?;
        let location = self.location(entry);
        self.set_word(local_of(entry), 0);
        *self.flags[local_of(entry)].get_mut() = 0;
        self.len -= 1;
        Some(location)
    }

    /// [`DirectIndex::bytes`] of an index for `rows` ids, before it is made.
    pub(crate) fn bytes_for(rows: u64, shard: usize, shards: usize) -> usize {
        let local = local_rows(rows, shard, shards);
        MmapArray::<u32>::bytes_for(local) + MmapArray::<AtomicU8>::bytes_for(local)
    }

    /// Bytes of memory once every page was touched.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.locations.bytes() + self.flags.bytes()
    }

    /// Number of ids that have a row.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Visit every id that has a row, in ascending order.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u64, Location)) {
        for (local, &location) in self.locations.iter().enumerate() {
            if location != 0 {
                visit((local as u64) << self.shard_bits | self.shard, Location::from_stored(location));
            }
        }
    }

    /// Replace the word of an entry, and count which rows are in memory and in order.
    #[inline]
    fn set_word(&mut self, local: usize, word: u32) {
        let old = std::mem::replace(&mut self.locations[local], word);
        if let Some(slot) = Location::of_stored(old).and_then(Location::slot) {
            self.resident -= 1;
            self.in_order -= usize::from(self.is_in_order(local, slot));
        }
        if let Some(slot) = Location::of_stored(word).and_then(Location::slot) {
            if self.resident == 0 {
                self.first_slot = slot.wrapping_sub(local as u32);
            }
            self.resident += 1;
            self.in_order += usize::from(self.is_in_order(local, slot));
        }
    }

    #[inline]
    fn is_in_order(&self, local: usize, slot: u32) -> bool {
        slot == self.first_slot.wrapping_add(local as u32)
    }

    #[inline]
    fn local(&self, id: u64) -> usize {
        (id >> self.shard_bits) as usize
    }
}

/// How many of `0..rows` fall to a shard.
fn local_rows(rows: u64, shard: usize, shards: usize) -> usize {
    debug_assert!(shards.is_power_of_two() && shard < shards);
    rows.saturating_sub(shard as u64).div_ceil(shards as u64) as usize
}

#[inline]
fn entry(local: usize) -> EntryRef {
    EntryRef::new(local as u32 + 1)
}

#[inline]
fn local_of(entry: EntryRef) -> usize {
    entry.get() as usize - 1
}
