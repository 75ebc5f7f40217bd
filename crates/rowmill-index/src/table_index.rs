//! The index of one (shard, table), of the kind that its id range asks for.

use rowmill_rows::IdRange;

use super::compare::Compare;
use super::direct_index::DirectIndex;
use super::hash_index::HashIndex;
use super::location::{EntryRef, Found, Location};

/// An index for any ids, or for a dense range of them.
#[derive(Debug)]
pub enum TableIndex {
    /// Any ids.
    Hash(HashIndex),
    /// A dense range.
    Direct(DirectIndex),
}

/// The entry is not in the first cache line that a lookup reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beyond;

/// Run the same call on either kind of index.
macro_rules! either {
    ($self:expr, $index:ident => $call:expr) => {
        match $self {
            TableIndex::Hash($index) => $call,
            TableIndex::Direct($index) => $call,
        }
    };
}

impl TableIndex {
    /// An empty index for the ids of `shard` out of `shards`.
    pub fn new(ids: IdRange, shard: usize, shards: usize) -> Self {
        match ids {
            IdRange::Sparse => Self::Hash(HashIndex::new()),
            IdRange::Dense { rows } => Self::Direct(DirectIndex::new(rows, shard, shards)),
        }
    }

    /// [`TableIndex::bytes`] of an index for `rows` ids of `shard`: of any ids, or of the dense range, which takes its
    /// memory at once.
    pub fn bytes_for(ids: IdRange, rows: usize, shard: usize, shards: usize) -> usize {
        match ids {
            IdRange::Sparse => HashIndex::new().grow_bytes_if_inserting(rows),
            IdRange::Dense { rows } => DirectIndex::bytes_for(rows, shard, shards),
        }
    }

    /// Prefetch the cache line that `find` will read.
    #[inline]
    pub fn prefetch(&self, id: u64, hash: u32) {
        match self {
            Self::Hash(index) => index.prefetch(hash),
            Self::Direct(index) => index.prefetch(id),
        }
    }

    /// Where the entry of `id` is; none for an id without a row or out of range.
    #[inline]
    pub fn find(&self, id: u64) -> Option<EntryRef> {
        either!(self, index => index.find(id))
    }

    /// As [`TableIndex::find`], given the [`hash`](super::hash) of the id, but read only the cache line that
    /// [`TableIndex::prefetch`] loads.
    ///
    /// # Errors
    /// [`Beyond`] when the entry may be elsewhere; its bucket is prefetched, and `find_beyond` will find it.
    ///
    /// # Safety
    /// The CPU has the instructions of `C`.
    #[inline(always)]
    pub unsafe fn find_near<C: Compare>(&self, id: u64, hash: u32) -> Result<Option<Found>, Beyond> {
        match self {
            // SAFETY: the caller's.
            Self::Hash(index) => unsafe { index.find_near::<C>(id, hash) },
            Self::Direct(index) => {
                Ok(index.find(id).map(|entry| Found { entry, location: index.location(entry) }))
            }
        }
    }

    /// The entry of an id with this hash, after [`TableIndex::find_near`] returned [`Beyond`].
    ///
    /// # Safety
    /// The CPU has the instructions of `C`.
    #[inline(always)]
    pub unsafe fn find_beyond<C: Compare>(&self, id: u64, hash: u32) -> Option<Found> {
        match self {
            // SAFETY: the caller's.
            Self::Hash(index) => unsafe { index.find_beyond::<C>(id, hash) },
            Self::Direct(_) => unreachable!("an entry of a dense range is in its one entry"),
        }
    }

    /// The index of any ids.
    #[inline]
    pub fn as_hash(&self) -> Option<&HashIndex> {
        match self {
            Self::Hash(index) => Some(index),
            Self::Direct(_) => None,
        }
    }

    /// The words of a dense range by position in the shard, for [`Location::of_stored`].
    #[inline]
    pub fn dense_locations(&self) -> Option<&[u32]> {
        match self {
            Self::Hash(_) => None,
            Self::Direct(index) => Some(index.locations()),
        }
    }

    /// The slot of position 0, if the rows of a dense range lie as in an array ([`DirectIndex::array`]).
    #[inline]
    pub fn array(&self) -> Option<u32> {
        match self {
            Self::Hash(_) => None,
            Self::Direct(index) => index.array(),
        }
    }

    /// Where the row of an entry is.
    #[inline]
    pub fn location(&self, entry: EntryRef) -> Location {
        either!(self, index => index.location(entry))
    }

    /// Set the location of the row of an entry.
    #[inline]
    pub fn set_location(&mut self, entry: EntryRef, location: Location) {
        either!(self, index => index.set_location(entry, location));
    }

    /// How often the row was touched, up to [`FREQUENCY_MAX`](super::FREQUENCY_MAX).
    #[inline]
    pub fn frequency(&self, entry: EntryRef) -> u8 {
        either!(self, index => index.frequency(entry))
    }

    /// Count an access; under contention it may go uncounted.
    #[inline]
    pub fn touch(&self, entry: EntryRef) {
        either!(self, index => index.touch(entry));
    }

    /// Replace the frequency.
    #[inline]
    pub fn set_frequency(&mut self, entry: EntryRef, frequency: u8) {
        either!(self, index => index.set_frequency(entry, frequency));
    }

    /// The clock of the row, or [`CLOCK_OVERFLOW`](super::CLOCK_OVERFLOW).
    #[inline]
    pub fn clock(&self, entry: EntryRef) -> u8 {
        either!(self, index => index.clock(entry))
    }

    /// Increment the clock of the row and return its old value. `None`, without a change, if more than `bound`
    /// gets are outstanding or if the clock cannot represent the new value.
    #[inline(always)]
    pub fn take_clock(&mut self, entry: EntryRef, bound: u8) -> Option<u8> {
        either!(self, index => index.take_clock(entry, bound))
    }

    /// Decrement the clock of the row and return its old value. At 0 and at
    /// [`CLOCK_OVERFLOW`](super::CLOCK_OVERFLOW) nothing changes.
    #[inline(always)]
    pub fn give_clock(&mut self, entry: EntryRef) -> u8 {
        either!(self, index => index.give_clock(entry))
    }

    /// Replace the clock.
    #[inline]
    pub fn set_clock(&mut self, entry: EntryRef, clock: u8) {
        either!(self, index => index.set_clock(entry, clock));
    }

    /// Add an id that is not there and is in range, with frequency and clock zero.
    #[inline]
    pub fn insert(&mut self, id: u64, location: Location) -> EntryRef {
        either!(self, index => index.insert(id, location))
    }

    /// Remove an id with its flags; returns where its row was.
    #[inline]
    pub fn remove(&mut self, id: u64) -> Option<Location> {
        either!(self, index => index.remove(id))
    }

    /// Make room for `rows` more, so that inserting them moves nothing.
    #[inline]
    pub fn reserve(&mut self, rows: usize) {
        match self {
            Self::Hash(index) => index.reserve(rows),
            // It has an entry for every id.
            Self::Direct(_) => {}
        }
    }

    /// Take exactly the memory that `rows` more need, in whole pages: more or less than now. References to entries
    /// become invalid.
    pub fn fit(&mut self, rows: usize) {
        match self {
            Self::Hash(index) => index.fit(rows),
            Self::Direct(_) => {}
        }
    }

    /// [`TableIndex::bytes`] after [`TableIndex::fit`].
    pub fn bytes_to_fit(&self, rows: usize) -> usize {
        match self {
            Self::Hash(index) => index.bytes_to_fit(rows),
            Self::Direct(index) => index.bytes(),
        }
    }

    /// Bytes that inserting `rows` more would add to [`TableIndex::bytes`].
    #[inline]
    pub fn grow_bytes_if_inserting(&self, rows: usize) -> usize {
        match self {
            Self::Hash(index) => index.grow_bytes_if_inserting(rows),
            Self::Direct(_) => 0,
        }
    }

    /// Bytes of memory, once every page was touched.
    #[inline]
    pub fn bytes(&self) -> usize {
        either!(self, index => index.bytes())
    }

    /// Number of ids.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no caller asks whether an index is empty")]
    pub fn len(&self) -> usize {
        either!(self, index => index.len())
    }

    /// Visit every id, in an order of the index's own.
    pub fn for_each(&self, visit: impl FnMut(u64, Location)) {
        either!(self, index => index.for_each(visit));
    }
}
