//! Visiting the rows of one shard with their memory fetched ahead.
//!
//! A lookup misses the caches twice: the bucket of the index, then the row it names. So keys are taken in
//! chunks, each in three passes: ask for the entries, read them and ask for the rows, visit. The passes
//! are loops of their own because a prefetch that misses the TLB holds up what is behind it until the
//! page is found: in a loop of nothing but prefetches many such walks overlap (measured at 32 M rows of 64
//! bytes: chunks of 16 reach 14 M rows/s, of 128 reach 26 M).

use std::ops::Deref;

use crate::core::Core;
#[cfg(target_arch = "x86_64")]
use crate::index::Avx512;
use crate::index::{Compare, Location, Place, Plain};
use crate::keys::Key;
use crate::shard::Shard;

/// Keys whose entries are asked for together: 8 KiB of buckets, a part of the first-level cache.
const CHUNK: usize = 128;
/// Bytes of rows asked for together, for the same reason.
const ROW_BYTES: usize = 16 << 10;

/// A row that has an entry in the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) place: Place,
    pub(crate) location: Location,
}

/// Call `visit` for every key in order, with what the index says of it at that moment. `visit` may change
/// the shard if `state` allows it; `UPDATE` says that rows in memory will be changed.
///
/// # Errors
/// The first of `visit`, which ends the walk.
#[inline(always)]
pub(crate) fn walk<const UPDATE: bool, S: Deref<Target = Shard>, E>(
    core: &Core,
    state: &mut S,
    keys: &[Key],
    mut visit: impl FnMut(&mut S, &Key, Option<Found>) -> Result<(), E>,
) -> Result<(), E> {
    let mut found = [None; CHUNK];
    let rows = (ROW_BYTES / core.layout.stride).clamp(1, CHUNK);
    for keys in keys.chunks(CHUNK) {
        state.prefetch_entries(keys);
        let edits = state.edits();
        state.look(keys, &mut found);
        for (keys, found) in keys.chunks(rows).zip(found.chunks(rows)) {
            for slot in found[..keys.len()].iter().filter_map(|found| found.as_ref()?.location.slot()) {
                state.prefetch_row::<UPDATE>(core, slot);
            }
            for (key, &found) in keys.iter().zip(found) {
                // What was read is stale once the index has changed.
                let found = if state.edits() == edits { found } else { state.find(key) };
                visit(state, key, found)?;
            }
        }
    }
    Ok(())
}

impl Shard {
    /// Ask for the entries of keys.
    #[inline(always)]
    fn prefetch_entries(&self, keys: &[Key]) {
        for key in keys {
            self.index(key.table).prefetch(key.id, key.hash);
        }
    }

    /// What the index says of a key.
    #[inline]
    pub(crate) fn find(&self, key: &Key) -> Option<Found> {
        let index = self.index(key.table);
        let place = index.find(key.id)?;
        Some(Found { place, location: index.location(place) })
    }

    /// What the index says of keys whose entries were asked for.
    fn look(&self, keys: &[Key], found: &mut [Option<Found>; CHUNK]) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("bmi1") {
            // SAFETY: the CPU has these instructions.
            unsafe { self.look_avx512(keys, found) };
            return;
        }
        // SAFETY: every CPU has the instructions of `Plain`.
        unsafe { self.look_with::<Plain>(keys, found) };
    }

    /// # Safety
    /// The CPU has AVX-512F and BMI1.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,bmi1")]
    unsafe fn look_avx512(&self, keys: &[Key], found: &mut [Option<Found>; CHUNK]) {
        // SAFETY: the caller's.
        unsafe { self.look_with::<Avx512>(keys, found) };
    }

    /// # Safety
    /// The CPU has the instructions of `C`.
    #[inline(always)]
    unsafe fn look_with<C: Compare>(&self, keys: &[Key], found: &mut [Option<Found>; CHUNK]) {
        let mut beyond = [0_u8; CHUNK];
        let mut count = 0;
        for (number, (key, found)) in keys.iter().zip(&mut *found).enumerate() {
            let index = self.index(key.table);
            // SAFETY: the caller's.
            if let Ok(place) = unsafe { index.find_near::<C>(key.id, key.hash) } {
                *found = place.map(|place| Found { place, location: index.location(place) });
            } else {
                beyond[count] = number as u8;
                count += 1;
            }
        }
        for &number in &beyond[..count] {
            found[number as usize] = self.find(&keys[number as usize]);
        }
    }
}
