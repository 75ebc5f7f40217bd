//! Segment unique: the distinct ids of one category's segment of a batch, in order of first occurrence.

use crate::SKIP;

/// Hash slots per distinct id. At a load of at most a quarter, the first slot decides nearly every id, and
/// the loop has no data-dependent branches.
const SLOTS_PER_ID: usize = 4;

/// Buffers of [`segment_unique`], kept from call to call: a hash table of positions in the list of unique ids.
#[derive(Clone, Debug, Default)]
pub struct UniqueScratch {
    /// For up to 2^16 ids: half the bytes, so the table of a batch stays in the L1 cache.
    narrow: Vec<u16>,
    wide: Vec<u32>,
}

impl UniqueScratch {
    /// Bytes allocated for the buffers.
    pub fn bytes(&self) -> usize {
        2 * self.narrow.capacity() + 4 * self.wide.capacity()
    }
}

/// A position in the list of unique ids. The largest value marks an empty slot.
trait Slot: Copy {
    const EMPTY: Self;

    fn of(position: u32) -> Self;

    fn position(self) -> u32;
}

impl Slot for u16 {
    const EMPTY: Self = Self::MAX;

    #[inline(always)]
    fn of(position: u32) -> Self {
        position as Self
    }

    #[inline(always)]
    fn position(self) -> u32 {
        self.into()
    }
}

impl Slot for u32 {
    const EMPTY: Self = Self::MAX;

    #[inline(always)]
    fn of(position: u32) -> Self {
        position
    }

    #[inline(always)]
    fn position(self) -> u32 {
        self
    }
}

/// Write the distinct `ids` to `unique`, in order of first occurrence, and the position of each id in
/// `unique` to `inverse`. Returns the number of distinct ids.
///
/// Ids equal to `padding` are not written to `unique`; their inverse is [`SKIP`].
///
/// # Panics
/// If `inverse` and `ids` differ in length, or there are 2^31 ids or more.
pub fn segment_unique(
    ids: &[u64],
    padding: Option<u64>,
    scratch: &mut UniqueScratch,
    unique: &mut Vec<u64>,
    inverse: &mut [u32],
) -> usize {
    assert_eq!(ids.len(), inverse.len(), "inverse must have one entry per id");
    assert!(ids.len() < 1 << 31, "there must be fewer than 2^31 ids");
    unique.clear();
    unique.reserve(ids.len());
    // SAFETY: `unique` has room for all ids, and `count` of them were written.
    unsafe {
        let count = distinct(ids.len(), [(ids, inverse)], padding, scratch, unique.as_mut_ptr());
        unique.set_len(count);
        count
    }
}

/// Write the distinct ids of one category to `unique`, and the position of each id to its segment's inverse.
/// The segments have `total` ids. Returns the number of distinct ids.
///
/// # Safety
/// `unique` has room for `total` ids.
pub(crate) unsafe fn distinct<'a>(
    total: usize,
    segments: impl IntoIterator<Item = (&'a [u64], &'a mut [u32])>,
    padding: Option<u64>,
    scratch: &mut UniqueScratch,
    unique: *mut u64,
) -> usize {
    // SAFETY: the caller upholds the contract.
    unsafe {
        if u16::try_from(total).is_ok() {
            distinct_with(total, segments, padding, &mut scratch.narrow, unique)
        } else {
            distinct_with(total, segments, padding, &mut scratch.wide, unique)
        }
    }
}

/// [`distinct`] with a hash table of slots of type `S`.
///
/// # Safety
/// As for [`distinct`].
unsafe fn distinct_with<'a, S: Slot>(
    total: usize,
    segments: impl IntoIterator<Item = (&'a [u64], &'a mut [u32])>,
    padding: Option<u64>,
    slots: &mut Vec<S>,
    unique: *mut u64,
) -> usize {
    slots.clear();
    slots.resize((SLOTS_PER_ID * total).next_power_of_two(), S::EMPTY);
    let (mut count, mut seen) = (0, 0);
    for (ids, inverse) in segments {
        seen += ids.len();
        assert!(ids.len() == inverse.len() && seen <= total, "the segments must have total ids");
        // SAFETY: `inverse` is as long as `ids`, `unique` has room for `total` ids, and the number of slots
        // is a power of two above `total`.
        count = unsafe {
            match padding {
                None => fill::<S, false>(ids, 0, slots, unique, count, inverse),
                Some(padding) => fill::<S, true>(ids, padding, slots, unique, count, inverse),
            }
        };
    }
    count
}

/// The loop of [`segment_unique`] over one segment, after segments with `count` distinct ids. Returns the new
/// number of distinct ids.
///
/// Each id is first written after the unique ids found so far. An empty slot reads as that position, so it
/// leads to an equal id, just as the right slot does. One comparison covers both cases, and whether the id is
/// new is arithmetic, not a branch.
///
/// # Safety
/// `unique` holds `count` ids and has room for `ids.len()` more. `inverse` is as long as `ids`. `slots.len()`
/// is a power of two above the number of ids of all segments. Slots are empty or hold positions below
/// `count`.
// If inlined, its state does not stay in registers, and an id takes 10% longer.
#[inline(never)]
unsafe fn fill<S: Slot, const PADDED: bool>(
    ids: &[u64],
    padding: u64,
    slots: &mut [S],
    unique: *mut u64,
    mut count: usize,
    inverse: &mut [u32],
) -> usize {
    let mask = slots.len() - 1;
    for (&id, inverse) in ids.iter().zip(inverse) {
        if PADDED && id == padding {
            *inverse = SKIP;
            continue;
        }
        // SAFETY: at most `count` distinct ids came before this one, so `unique` has room for it. Slots are
        // empty or hold positions below `count`, and there is always an empty slot to stop at.
        unsafe {
            *unique.add(count) = id;
            let mut slot = hash(id) & mask;
            let mut position = slots.get_unchecked(slot).position().min(count as u32);
            while *unique.add(position as usize) != id {
                slot = (slot + 1) & mask;
                position = slots.get_unchecked(slot).position().min(count as u32);
            }
            *slots.get_unchecked_mut(slot) = S::of(position);
            *inverse = position;
            count += usize::from(position as usize == count);
        }
    }
    count
}

/// Combine both halves of a 128-bit product: every bit of the id affects the low bits that select a slot, so
/// ids with a regular pattern do not collide.
#[inline(always)]
fn hash(id: u64) -> usize {
    let product = u128::from(id ^ 0x2d35_8dcc_aa6c_78a5) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
    (product as u64 ^ (product >> 64) as u64) as usize
}
