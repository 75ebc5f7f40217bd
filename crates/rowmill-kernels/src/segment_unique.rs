//! Segment unique: the distinct ids of one category's segment of a batch, in order of first occurrence.

use crate::SKIP;

/// Slots per distinct id: at a load of at most a quarter nearly every id is decided by its first slot, and
/// the loop stays free of branches that depend on data.
const SLOTS_PER_ID: usize = 4;

/// Buffers of [`segment_unique`], kept from call to call: a hash table of positions in the list of unique ids.
#[derive(Clone, Debug, Default)]
pub struct UniqueScratch {
    /// For up to 2^16 ids: half the bytes, so the table of a batch stays in the first-level cache.
    narrow: Vec<u16>,
    wide: Vec<u32>,
}

impl UniqueScratch {
    /// Bytes the buffers hold.
    pub fn bytes(&self) -> usize {
        2 * self.narrow.capacity() + 4 * self.wide.capacity()
    }
}

/// A position in the list of unique ids; the largest value is an empty slot.
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

/// Fill `unique` with the distinct `ids` in order of first occurrence and `inverse` with the position of
/// each id in it; returns their number.
///
/// Ids equal to `padding` do not enter `unique`; their inverse is [`SKIP`].
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
    assert_eq!(ids.len(), inverse.len(), "one inverse per id");
    assert!(ids.len() < 1 << 31, "positions are 32 bits");
    unique.clear();
    unique.reserve(ids.len());
    // SAFETY: there is room for all ids, and so many were written.
    unsafe {
        let count = distinct(ids.len(), [(ids, inverse)], padding, scratch, unique.as_mut_ptr());
        unique.set_len(count);
        count
    }
}

/// Write the distinct ids of one category, `total` of which lie in several segments, to `unique`, and the position of each
/// among them to the segment's inverse; returns how many there are.
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
    // SAFETY: as the caller says.
    unsafe {
        if u16::try_from(total).is_ok() {
            distinct_with(total, segments, padding, &mut scratch.narrow, unique)
        } else {
            distinct_with(total, segments, padding, &mut scratch.wide, unique)
        }
    }
}

/// [`distinct`] with a table of these slots.
///
/// # Safety
/// As there.
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
        assert!(ids.len() == inverse.len() && seen <= total, "segments are as long as was said");
        // SAFETY: `inverse` is as long as `ids`, `unique` has room for `total` ids, and the number of slots is a power
        // of two larger than `total`.
        count = unsafe {
            match padding {
                None => fill::<S, false>(ids, 0, slots, unique, count, inverse),
                Some(padding) => fill::<S, true>(ids, padding, slots, unique, count, inverse),
            }
        };
    }
    count
}

/// The loop of [`segment_unique`], of a segment behind others that had `count` distinct ids; returns how many there
/// are then.
///
/// Each id is first written behind the unique ids found so far, so that an empty slot (which reads as
/// that position) leads to an equal id just as the right slot does: both cases are one comparison, and
/// whether the id is new is arithmetic, not a branch.
///
/// # Safety
/// `unique` holds `count` ids and has room for `ids.len()` more, `inverse` is as long as `ids`, `slots.len()` is a power
/// of two larger than the number of ids of all segments, and slots are empty or hold positions below `count`.
// Inlined, its state does not stay in registers, and an id takes a tenth longer.
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
        // SAFETY: `count` ids came before this one, so it has room; slots hold positions below `count` or
        // are empty, and there is always an empty one to stop at.
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

/// Both halves of a 128-bit product: every bit of the id reaches the low bits that choose a slot, so ids
/// with a regular pattern do not pile up.
#[inline(always)]
fn hash(id: u64) -> usize {
    let product = u128::from(id ^ 0x2d35_8dcc_aa6c_78a5) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
    (product as u64 ^ (product >> 64) as u64) as usize
}
