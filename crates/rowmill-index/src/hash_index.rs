//! An index for any 64-bit ids: a hash table of cache-line buckets, looked up in batches.
//!
//! A bucket is one 64-byte line with five entries: full ids, locations, and the flags of all five in one
//! word. A lookup therefore usually has two cache misses: the bucket and the row. An id's home bucket is the
//! high part of `hash * buckets`, for any number of buckets. An entry that does not fit into its home bucket
//! goes to the next bucket with room. The full buckets in between get an overflow bit, which stays set until
//! the index is rebuilt. A lookup ends at the first bucket without this bit.
//!
//! Growing keeps the order of home buckets. So it is one sequential pass from the old memory to the new
//! memory, and old pages are freed during the pass: both together take little more than the new memory alone.
//! A drawback of this order: inserting rows in bucket order into an index that still grows would fill its low
//! end first. [`HashIndex::for_each`] therefore does not visit in bucket order.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::compare::{Compare, Plain};
use super::flags::{self, FLAG_BITS, FREQUENCY_MAX};
use super::location::{EntryRef, Found, Location};
use super::mmap_array::{MmapArray, PAGE_BYTES, Zeroed};
use super::shard::hash;
use super::table_index::Beyond;
use crate::prefetch::prefetch;

/// Entries of a bucket: five of 12 bytes and a word of flags fill a 64-byte line.
const ENTRIES: usize = 5;
/// Rows per bucket at which the index grows: a load of 0.8, 16 bytes per row. At a higher load, lookups of
/// absent ids pass through long runs of full buckets.
const ROWS_PER_BUCKET_MAX: usize = 4;
/// Growth by half leaves at most 24 bytes per row.
const GROWTH_NUMERATOR: usize = 3;
const GROWTH_DENOMINATOR: usize = 2;
/// Buckets come in whole pages.
const PAGE_BUCKETS: usize = PAGE_BYTES / size_of::<Bucket>();
/// A [`EntryRef`] has 29 bits for the bucket: 2^31 rows at a load of 0.8, as many as locations can name.
const BUCKETS_MAX: usize = 1 << 29;
/// Buckets visited in a row by [`HashIndex::for_each`]: 1 KiB, enough to read memory in order, and few
/// enough that their rows make no long run in a smaller index they are copied to.
const VISIT_BUCKETS: usize = 16;
/// Set in the flags of a bucket that an entry was pushed out of since the last rebuild.
const OVERFLOW: u32 = 1 << 30;
/// Old buckets given back at a time while growing: 4 MiB, two huge pages.
const RELEASE_BUCKETS: usize = (4 << 20) / size_of::<Bucket>();
#[repr(C, align(64))]
struct Bucket {
    /// Zero where the location is zero.
    ids: [u64; ENTRIES],
    /// [`Location::stored`], or zero for an empty entry.
    locations: [u32; ENTRIES],
    /// Six bits per entry, then the overflow bit.
    flags: AtomicU32,
}

const _: () = assert!(size_of::<Bucket>() == 64 && PAGE_BUCKETS.is_multiple_of(VISIT_BUCKETS));
const _: () = assert!(ENTRIES as u32 * FLAG_BITS <= 30);

// SAFETY: numbers and an atomic number, all of which may be zero, and no drop.
unsafe impl Zeroed for Bucket {}

impl Bucket {
    /// The entry that holds `id`.
    #[inline]
    fn entry_of(&self, id: u64) -> Option<usize> {
        // SAFETY: every CPU has the instructions.
        self.occupied(unsafe { Plain::matches(&self.ids, id) })
    }

    /// Find an id in this bucket, whose number is `number`.
    ///
    /// # Safety
    /// The CPU has the instructions of `C`.
    #[inline(always)]
    unsafe fn find<C: Compare>(&self, id: u64, number: usize) -> Option<Found> {
        // SAFETY: the caller's.
        let e = self.occupied(unsafe { C::matches(&self.ids, id) })?;
        Some(Found { entry: entry(number, e), location: Location::from_stored(self.locations[e]) })
    }

    /// The entry that holds an id, among the entries that match it. Empty entries match id 0, so they are excluded.
    #[inline(always)]
    fn occupied(&self, mut matches: u32) -> Option<usize> {
        while matches != 0 {
            let e = matches.trailing_zeros() as usize;
            if self.locations[e] != 0 {
                return Some(e);
            }
            matches &= matches - 1;
        }
        None
    }

    #[inline]
    fn empty_entry(&self) -> Option<usize> {
        self.locations.iter().position(|&location| location == 0)
    }

    #[inline]
    fn overflowed(&self) -> bool {
        self.flags.load(Relaxed) & OVERFLOW != 0
    }
}

/// Ids of one (shard, table), any of the 2^64, to locations and flags.
#[derive(Debug)]
pub struct HashIndex {
    buckets: MmapArray<Bucket>,
    len: usize,
    /// Removals since the last rebuild. Removing leaves overflow bits behind; unchecked, endless
    /// removing and inserting would set them all and every lookup of an absent id would walk the table.
    removed: usize,
}

impl HashIndex {
    /// An index without rows, which takes no memory.
    #[inline]
    pub(crate) fn new() -> Self {
        Self { buckets: MmapArray::new(0), len: 0, removed: 0 }
    }

    /// Start loading the home bucket of an id with this hash. Batches ask for many buckets, then look them
    /// up.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        prefetch(self.buckets.as_ptr().wrapping_add(home(hash, self.buckets.len())));
    }

    /// Look into the home bucket of an id, and ask for the next one if the entry may be there.
    ///
    /// # Errors
    /// [`Beyond`] when the entry may be in a later bucket.
    ///
    /// # Safety
    /// The CPU has the instructions of `C`.
    #[inline(always)]
    pub unsafe fn find_near<C: Compare>(&self, id: u64, hash: u32) -> Result<Option<Found>, Beyond> {
        let home = home(hash, self.buckets.len());
        let Some(bucket) = self.buckets.get(home) else { return Ok(None) };
        // SAFETY: the caller's.
        if let Some(found) = unsafe { bucket.find::<C>(id, home) } {
            return Ok(Some(found));
        }
        if bucket.overflowed() {
            prefetch(self.buckets.as_ptr().wrapping_add(next(home, self.buckets.len())));
            return Err(Beyond);
        }
        Ok(None)
    }

    /// The entry of an id with this hash, which is not in its home bucket, if there is one.
    ///
    /// # Safety
    /// The CPU has the instructions of `C`.
    #[inline(always)]
    pub unsafe fn find_beyond<C: Compare>(&self, id: u64, hash: u32) -> Option<Found> {
        let home = home(hash, self.buckets.len());
        let mut b = home;
        while self.buckets[b].overflowed() {
            b = next(b, self.buckets.len());
            if b == home {
                break;
            }
            // SAFETY: the caller's.
            if let Some(found) = unsafe { self.buckets[b].find::<C>(id, b) } {
                return Some(found);
            }
        }
        None
    }

    /// Where the entry of `id` is.
    #[inline]
    pub(crate) fn find(&self, id: u64) -> Option<EntryRef> {
        let home = home(hash(id), self.buckets.len());
        let mut b = home;
        loop {
            // An index without memory has no bucket at all.
            let bucket = self.buckets.get(b)?;
            if let Some(e) = bucket.entry_of(id) {
                return Some(entry(b, e));
            }
            if !bucket.overflowed() {
                return None;
            }
            b = next(b, self.buckets.len());
            if b == home {
                return None;
            }
        }
    }

    /// Where the row of an entry is.
    #[inline]
    pub fn location(&self, entry: EntryRef) -> Location {
        let (bucket, e) = split(entry);
        Location::from_stored(self.buckets[bucket].locations[e])
    }

    /// Say that the row of an entry has moved.
    #[inline]
    pub(crate) fn set_location(&mut self, entry: EntryRef, location: Location) {
        let (bucket, e) = split(entry);
        debug_assert_ne!(self.buckets[bucket].locations[e], 0, "the entry has no entry");
        self.buckets[bucket].locations[e] = location.stored();
    }

    /// How often the row was touched, up to [`FREQUENCY_MAX`].
    #[inline]
    pub(crate) fn frequency(&self, entry: EntryRef) -> u8 {
        let (word, shift) = self.flags_of(entry);
        flags::frequency(word.load(Relaxed) >> shift)
    }

    /// Count an access.
    ///
    /// A saturated frequency writes nothing, so hot rows stay shared in the caches. Load and store are two
    /// operations: when several threads touch one bucket at the same moment some accesses go uncounted.
    /// Nothing else is lost, because every other bit changes under exclusive access only; a locked
    /// operation would cost each lookup as much as the lookup itself.
    #[inline]
    pub(crate) fn touch(&self, entry: EntryRef) {
        let (word, shift) = self.flags_of(entry);
        let bits = word.load(Relaxed);
        if flags::frequency(bits >> shift) < FREQUENCY_MAX {
            word.store(bits + (1 << shift), Relaxed);
        }
    }

    /// Replace the frequency.
    #[inline]
    pub(crate) fn set_frequency(&mut self, entry: EntryRef, frequency: u8) {
        let (word, shift) = self.flags_of_mut(entry);
        *word = flags::with_frequency(*word, shift, frequency);
    }

    /// The clock of the row, or [`CLOCK_OVERFLOW`](super::CLOCK_OVERFLOW).
    #[inline]
    pub(crate) fn clock(&self, entry: EntryRef) -> u8 {
        let (word, shift) = self.flags_of(entry);
        flags::clock(word.load(Relaxed) >> shift)
    }

    /// As [`TableIndex::take_clock`](super::TableIndex::take_clock).
    #[inline(always)]
    pub(crate) fn take_clock(&mut self, entry: EntryRef, bound: u8) -> Option<u8> {
        let (word, shift) = self.flags_of_mut(entry);
        let clock = flags::clock(*word >> shift);
        flags::may_take(clock, bound).then(|| {
            *word += flags::one_taken(shift);
            clock
        })
    }

    /// As [`TableIndex::give_clock`](super::TableIndex::give_clock).
    #[inline(always)]
    pub(crate) fn give_clock(&mut self, entry: EntryRef) -> u8 {
        let (word, shift) = self.flags_of_mut(entry);
        let clock = flags::clock(*word >> shift);
        if flags::may_give(clock) {
            *word -= flags::one_taken(shift);
        }
        clock
    }

    /// Replace the clock.
    #[inline]
    pub(crate) fn set_clock(&mut self, entry: EntryRef, clock: u8) {
        let (word, shift) = self.flags_of_mut(entry);
        *word = flags::with_clock(*word, shift, clock);
    }

    /// Add an id that is not there, with frequency and clock zero. Grows the index unless `reserve` has
    /// made room.
    #[inline]
    pub(crate) fn insert(&mut self, id: u64, location: Location) -> EntryRef {
        debug_assert!(self.find(id).is_none(), "id {id} is already in the index");
        self.reserve(1);
        self.len += 1;
        insert_into(&mut self.buckets, id, location.stored(), 0)
    }

    /// Remove an id with its flags; returns where its row was.
    #[inline]
    pub(crate) fn remove(&mut self, id: u64) -> Option<Location> {
        let entry = self.find(id)?;
        let location = self.location(entry);
        let (bucket, e) = split(entry);
        self.set_frequency(entry, 0);
        self.set_clock(entry, 0);
        self.buckets[bucket].ids[e] = 0;
        self.buckets[bucket].locations[e] = 0;
        self.len -= 1;
        self.removed += 1;
        Some(location)
    }

    /// Make room for `rows` more, so that inserting them moves nothing.
    #[inline]
    pub(crate) fn reserve(&mut self, rows: usize) {
        let wanted = self.buckets_with(rows);
        if wanted != self.buckets.len() || self.removed > wanted {
            self.rebuild(wanted);
        }
    }

    /// Take exactly the memory that `rows` more need, in whole pages: more or less than now.
    pub(crate) fn fit(&mut self, rows: usize) {
        let wanted = buckets_for(self.len + rows);
        if wanted != self.buckets.len() {
            self.rebuild(wanted);
        }
    }

    /// Bytes after [`HashIndex::fit`].
    pub(crate) fn bytes_to_fit(&self, rows: usize) -> usize {
        MmapArray::<Bucket>::bytes_for(buckets_for(self.len + rows))
    }

    /// Bytes that inserting `rows` more would add to [`HashIndex::bytes`]. While growing, 4 MiB more are
    /// taken for a moment, or the old size of an index smaller than that.
    #[inline]
    pub(crate) fn grow_bytes_if_inserting(&self, rows: usize) -> usize {
        MmapArray::<Bucket>::bytes_for(self.buckets_with(rows)) - self.bytes()
    }

    /// Bytes of memory.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.bytes()
    }

    /// Number of ids.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Visit every id, in no useful order.
    ///
    /// Runs of buckets are visited in steps of about the golden ratio of their number, so every prefix of the
    /// visit is spread evenly over the hashes. In bucket order, a caller that inserts the visited ids into
    /// another, growing index would fill it from its low end and probe through ever longer runs of full
    /// buckets, which takes quadratic time.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u64, Location)) {
        let runs = self.buckets.len() / VISIT_BUCKETS;
        let step = coprime_step(runs);
        let mut run = 0;
        for _ in 0..runs {
            for bucket in &self.buckets[run * VISIT_BUCKETS..][..VISIT_BUCKETS] {
                for (&id, &location) in bucket.ids.iter().zip(&bucket.locations) {
                    if location != 0 {
                        visit(id, Location::from_stored(location));
                    }
                }
            }
            run = (run + step) % runs;
        }
    }

    /// Read one word of the home bucket of every id: the memory traffic of lookups without their work.
    #[cfg(test)]
    pub(super) fn read_homes(&self, ids: &[u64]) -> u64 {
        for &id in ids {
            self.prefetch(hash(id));
        }
        ids.iter().map(|&id| u64::from(self.buckets[home(hash(id), self.buckets.len())].locations[0])).sum()
    }

    /// How many buckets a lookup of `id` reads.
    #[cfg(test)]
    pub(super) fn buckets_to_find(&self, id: u64) -> usize {
        let (mut b, mut read) = (home(hash(id), self.buckets.len()), 1);
        while self.buckets.get(b).is_some_and(|bucket| bucket.entry_of(id).is_none() && bucket.overflowed()) {
            b = next(b, self.buckets.len());
            read += 1;
        }
        read
    }

    #[inline]
    fn flags_of(&self, entry: EntryRef) -> (&AtomicU32, u32) {
        let (bucket, e) = split(entry);
        (&self.buckets[bucket].flags, e as u32 * FLAG_BITS)
    }

    #[inline]
    fn flags_of_mut(&mut self, entry: EntryRef) -> (&mut u32, u32) {
        let (bucket, e) = split(entry);
        (self.buckets[bucket].flags.get_mut(), e as u32 * FLAG_BITS)
    }

    /// Buckets the index has once `rows` more are in it.
    #[inline]
    fn buckets_with(&self, rows: usize) -> usize {
        let (buckets, rows) = (self.buckets.len(), self.len + rows);
        if rows <= buckets * ROWS_PER_BUCKET_MAX {
            return buckets;
        }
        let grown = (buckets * GROWTH_NUMERATOR / GROWTH_DENOMINATOR).next_multiple_of(PAGE_BUCKETS);
        grown.min(BUCKETS_MAX).max(buckets_for(rows))
    }

    /// Move every entry into `buckets` new buckets, without overflow bits that nothing needs any more.
    #[cold]
    #[inline(never)]
    fn rebuild(&mut self, buckets: usize) {
        assert!(buckets <= BUCKETS_MAX, "an index holds at most 2^31 rows");
        let mut old = std::mem::replace(&mut self.buckets, MmapArray::new(buckets));
        self.removed = 0;
        let mut released = 0;
        for b in 0..old.len() {
            let bucket = &mut old[b];
            let bits = *bucket.flags.get_mut();
            for e in 0..ENTRIES {
                if bucket.locations[e] != 0 {
                    let entry_bits = bits >> (e as u32 * FLAG_BITS) & ((1 << FLAG_BITS) - 1);
                    insert_into(&mut self.buckets, bucket.ids[e], bucket.locations[e], entry_bits);
                }
            }
            if b - released == RELEASE_BUCKETS {
                old.release(released..b);
                released = b;
            }
        }
    }
}

/// Put an entry into the first bucket with room from its home on. There is room: the load is bounded.
#[inline]
fn insert_into(buckets: &mut [Bucket], id: u64, location: u32, bits: u32) -> EntryRef {
    let mut b = home(hash(id), buckets.len());
    loop {
        let bucket = &mut buckets[b];
        if let Some(e) = bucket.empty_entry() {
            bucket.ids[e] = id;
            bucket.locations[e] = location;
            *bucket.flags.get_mut() |= bits << (e as u32 * FLAG_BITS);
            return entry(b, e);
        }
        *bucket.flags.get_mut() |= OVERFLOW;
        b = next(b, buckets.len());
    }
}

/// The bucket a lookup starts at (multiply-shift: Lemire, "Fast random integer generation in an
/// interval", 2019). It depends on the high bits of the hash only.
#[inline]
fn home(hash: u32, buckets: usize) -> usize {
    ((u64::from(hash) * buckets as u64) >> 32) as usize
}

#[inline]
fn next(b: usize, buckets: usize) -> usize {
    if b + 1 == buckets { 0 } else { b + 1 }
}

/// Least buckets, in whole pages, that hold `rows`.
fn buckets_for(rows: usize) -> usize {
    rows.div_ceil(ROWS_PER_BUCKET_MAX).next_multiple_of(PAGE_BUCKETS)
}

/// The bucket in the high bits, the entry plus one in the low three.
#[inline]
fn entry(bucket: usize, e: usize) -> EntryRef {
    EntryRef::new((bucket as u32) << 3 | (e as u32 + 1))
}

#[inline]
fn split(entry: EntryRef) -> (usize, usize) {
    let entry = entry.get();
    ((entry >> 3) as usize, (entry & 7) as usize - 1)
}

/// A step near the golden ratio of `count` that visits all of `0..count` before it repeats.
fn coprime_step(count: usize) -> usize {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let mut step = ((count as f64 * GOLDEN) as usize).max(1);
    while greatest_common_divisor(step, count) > 1 {
        step += 1;
    }
    step
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
