//! Visiting rows with their memory fetched ahead.
//!
//! A lookup misses the caches twice: the bucket of the index, then the row it names. So keys are taken in
//! chunks, each in three passes: ask for the entries, read them and ask for the rows, visit. The passes
//! are loops of their own because a prefetch that misses the TLB holds up what is behind it until the
//! page is found: in a loop of nothing but prefetches many such walks overlap (measured at 32 M rows of 64
//! bytes: chunks of 16 reach 14 M rows/s, of 128 reach 26 M).

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::core::Core;
#[cfg(target_arch = "x86_64")]
use crate::index::Avx512;
use crate::index::{Compare, Found, Plain};
use crate::keys::Key;
use crate::shard::Shard;

/// Keys whose entries are asked for together: 8 KiB of buckets, a part of the first-level cache.
const CHUNK: usize = 128;
/// Bytes of rows asked for together, for the same reason.
const ROW_BYTES: usize = 16 << 10;

/// Shards held under a lock.
pub(crate) trait Locked {
    /// The shard of a key, which is among them.
    fn shard(&self, key: &Key) -> &Shard;

    /// Unchanged means that every entry of every index says what it said.
    fn edits(&self) -> u64;
}

/// All shards of a group, for reading.
pub(crate) type AllShards<'a> = Vec<RwLockReadGuard<'a, Shard>>;

impl Locked for &AllShards<'_> {
    #[inline(always)]
    fn shard(&self, key: &Key) -> &Shard {
        &self[key.shard as usize]
    }

    #[inline(always)]
    fn edits(&self) -> u64 {
        0
    }
}

impl Locked for RwLockReadGuard<'_, Shard> {
    #[inline(always)]
    fn shard(&self, _: &Key) -> &Shard {
        self
    }

    #[inline(always)]
    fn edits(&self) -> u64 {
        0
    }
}

impl Locked for RwLockWriteGuard<'_, Shard> {
    #[inline(always)]
    fn shard(&self, _: &Key) -> &Shard {
        self
    }

    #[inline(always)]
    fn edits(&self) -> u64 {
        Shard::edits(self)
    }
}

/// Call `visit` for every key in order, with what the index says of it at that moment. `visit` may change
/// the shard if `locked` allows it; `UPDATE` says that rows in memory will be changed. `ahead` is called for every
/// key some visits earlier, to ask for what else its visit looks at.
///
/// # Errors
/// The first of `visit`, which ends the walk.
#[inline(always)]
pub(crate) fn walk<const UPDATE: bool, L: Locked, E>(
    core: &Core,
    locked: &mut L,
    keys: &[Key],
    ahead: impl Fn(&Key),
    mut visit: impl FnMut(&mut L, &Key, Option<Found>) -> Result<(), E>,
) -> Result<(), E> {
    let mut found = [None; CHUNK];
    let rows = (ROW_BYTES / core.layout.stride).clamp(1, CHUNK);
    for keys in keys.chunks(CHUNK) {
        for key in keys {
            locked.shard(key).index(key.table).prefetch(key.id, key.hash);
        }
        let edits = locked.edits();
        look(locked, keys, &mut found);
        for (keys, found) in keys.chunks(rows).zip(found.chunks(rows)) {
            for (key, found) in keys.iter().zip(found) {
                if let Some(slot) = found.and_then(|found| found.location.slot()) {
                    locked.shard(key).prefetch_row::<UPDATE>(core, slot);
                }
                ahead(key);
            }
            for (key, &found) in keys.iter().zip(found) {
                // What was read is stale once the index has changed.
                let found = if locked.edits() == edits { found } else { locked.shard(key).find(key) };
                visit(locked, key, found)?;
            }
        }
    }
    Ok(())
}

/// What the index of a shard said of some keys, in their order.
#[derive(Debug)]
pub(crate) struct Known {
    /// The generation it belongs to: [`Shard::edits`].
    pub(crate) edits: u64,
    pub(crate) found: Vec<Found>,
}

/// As [`walk`], of keys that are changed, with what the index is known to say of them; `entries` says that theirs
/// will be changed, too.
///
/// # Errors
/// The first of `visit`.
#[inline(always)]
pub(crate) fn walk_known<E>(
    core: &Core,
    shard: &mut RwLockWriteGuard<'_, Shard>,
    (keys, known): (&[Key], &Known),
    entries: bool,
    ahead: impl Fn(&Key),
    mut visit: impl FnMut(&mut RwLockWriteGuard<'_, Shard>, &Key, Option<Found>) -> Result<(), E>,
) -> Result<(), E> {
    let rows = (ROW_BYTES / core.layout.stride).clamp(1, CHUNK);
    for (keys, found) in keys.chunks(rows).zip(known.found.chunks(rows)) {
        for (key, found) in keys.iter().zip(found) {
            if entries {
                shard.index(key.table).prefetch(key.id, key.hash);
            }
            if let Some(slot) = found.location.slot() {
                shard.prefetch_row::<true>(core, slot);
            }
            ahead(key);
        }
        for (key, &found) in keys.iter().zip(found) {
            let found = if shard.edits() == known.edits { Some(found) } else { shard.find(key) };
            visit(shard, key, found)?;
        }
    }
    Ok(())
}

/// What the index says of keys whose entries were asked for.
fn look(locked: &impl Locked, keys: &[Key], found: &mut [Option<Found>; CHUNK]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("bmi1") {
        // SAFETY: the CPU has these instructions.
        unsafe { look_avx512(locked, keys, found) };
        return;
    }
    // SAFETY: every CPU has the instructions of `Plain`.
    unsafe { look_with::<Plain>(locked, keys, found) };
}

/// # Safety
/// The CPU has AVX-512F and BMI1.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,bmi1")]
unsafe fn look_avx512(locked: &impl Locked, keys: &[Key], found: &mut [Option<Found>; CHUNK]) {
    // SAFETY: the caller's.
    unsafe { look_with::<Avx512>(locked, keys, found) };
}

/// # Safety
/// The CPU has the instructions of `C`.
#[inline(always)]
unsafe fn look_with<C: Compare>(locked: &impl Locked, keys: &[Key], found: &mut [Option<Found>; CHUNK]) {
    let mut beyond = [0_u8; CHUNK];
    let mut count = 0;
    for (number, (key, found)) in keys.iter().zip(&mut *found).enumerate() {
        let index = locked.shard(key).index(key.table);
        // SAFETY: the caller's.
        if let Ok(near) = unsafe { index.find_near::<C>(key.id, key.hash) } {
            *found = near;
        } else {
            beyond[count] = number as u8;
            count += 1;
        }
    }
    for &number in &beyond[..count] {
        let key = &keys[number as usize];
        let index = locked.shard(key).index(key.table);
        // SAFETY: the caller's.
        found[number as usize] = unsafe { index.find_beyond::<C>(key.id, key.hash) };
    }
}

impl Shard {
    /// What the index says of a key.
    #[inline]
    pub(crate) fn find(&self, key: &Key) -> Option<Found> {
        let index = self.index(key.table);
        let place = index.find(key.id)?;
        Some(Found { place, location: index.location(place) })
    }
}
