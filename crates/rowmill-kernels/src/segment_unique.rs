//! Segment unique: the distinct ids of one category's segment of a batch, in order of first occurrence.

use crate::SKIP;

/// Slots per distinct id: at a load of at most a quarter nearly every id is decided by its first slot, and
/// the loop stays free of branches that depend on data.
const SLOTS_PER_ID: usize = 4;

/// Buffers of [`segment_unique`], kept from call to call.
#[derive(Clone, Debug, Default)]
pub struct UniqueScratch {
    /// A hash table of positions in the list of unique ids; `u32::MAX` is an empty slot.
    slots: Vec<u32>,
}

impl UniqueScratch {
    /// Bytes the buffers hold.
    pub fn bytes(&self) -> usize {
        4 * self.slots.capacity()
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
    let slots = (SLOTS_PER_ID * ids.len()).next_power_of_two();
    scratch.slots.clear();
    scratch.slots.resize(slots, u32::MAX);
    unique.clear();
    unique.reserve(ids.len());
    // SAFETY: `inverse` is as long as `ids`, `unique` has room for all of them, and the number of slots is
    // a power of two larger than the number of ids.
    unsafe {
        let count = match padding {
            None => fill::<false>(ids, 0, &mut scratch.slots, unique.as_mut_ptr(), inverse),
            Some(padding) => fill::<true>(ids, padding, &mut scratch.slots, unique.as_mut_ptr(), inverse),
        };
        unique.set_len(count);
        count
    }
}

/// The loop of [`segment_unique`].
///
/// Each id is first written behind the unique ids found so far, so that an empty slot (which reads as
/// that position) leads to an equal id just as the right slot does: both cases are one comparison, and
/// whether the id is new is arithmetic, not a branch.
///
/// # Safety
/// `unique` has room for `ids.len()` ids, `inverse` is as long as `ids`, `slots.len()` is a power of two
/// larger than `ids.len()` and all slots are empty.
#[inline(always)]
unsafe fn fill<const PADDED: bool>(
    ids: &[u64],
    padding: u64,
    slots: &mut [u32],
    unique: *mut u64,
    inverse: &mut [u32],
) -> usize {
    let mask = slots.len() - 1;
    let mut count = 0;
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
            let mut position = (*slots.get_unchecked(slot)).min(count as u32);
            while *unique.add(position as usize) != id {
                slot = (slot + 1) & mask;
                position = (*slots.get_unchecked(slot)).min(count as u32);
            }
            *slots.get_unchecked_mut(slot) = position;
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
