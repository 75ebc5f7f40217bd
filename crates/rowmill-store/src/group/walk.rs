//! Visiting rows with their memory fetched ahead.
//!
//! A lookup misses the caches twice: the bucket of the index, then the row it names. So keys are taken in
//! chunks, each in three passes: ask for the entries, read them and ask for the rows, visit. The passes
//! are loops of their own because a prefetch that misses the TLB holds up what is behind it until the
//! page is found: in a loop of nothing but prefetches many such walks overlap (measured at 32 M rows of 64
//! bytes: chunks of 16 reach 14 M rows/s, of 64 or 128 reach 26 M).

use rowmill_index::{Compare, Found, Plain, TableIndex};
use rowmill_sync::{RwLockReadGuard, RwLockWriteGuard};

use super::group::SHARDS_MAX;
use crate::shard::{Core, Shard, SlotsInPlace};
use crate::table::Key;
#[cfg(target_arch = "x86_64")]
use rowmill_index::Avx512;

/// Keys whose entries are asked for together: 4 KiB of buckets, a part of the first-level cache.
pub(crate) const CHUNK: usize = 64;
/// Bytes of rows asked for together, for the same reason.
const ROW_BYTES: usize = 16 << 10;

/// How many rows are asked for together.
pub(crate) fn rows_together(core: &Core) -> usize {
    (ROW_BYTES / core.layout.stride).clamp(1, CHUNK)
}

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

impl Locked for Vec<RwLockWriteGuard<'_, Shard>> {
    #[inline(always)]
    fn shard(&self, key: &Key) -> &Shard {
        &self[key.shard as usize]
    }

    #[inline(always)]
    fn edits(&self) -> u64 {
        self.iter().map(Locked::edits).sum()
    }
}

/// Shards held for changing.
pub(crate) trait Changeable: Locked {
    /// The shard of a key, which is among them.
    fn shard_mut(&mut self, key: &Key) -> &mut Shard;

    /// The index of a table that has a key.
    fn index_of<'a>(&'a self, table: u32) -> impl Fn(&Key) -> &'a TableIndex;

    /// The slots of the shard of a key.
    fn slots_of<'a>(&'a self, core: &Core) -> impl Fn(&Key) -> SlotsInPlace<'a>;
}

impl Changeable for RwLockWriteGuard<'_, Shard> {
    #[inline(always)]
    fn shard_mut(&mut self, _: &Key) -> &mut Shard {
        self
    }

    #[inline(always)]
    fn index_of<'a>(&'a self, table: u32) -> impl Fn(&Key) -> &'a TableIndex {
        let index = self.index(table);
        move |_| index
    }

    #[inline(always)]
    fn slots_of<'a>(&'a self, core: &Core) -> impl Fn(&Key) -> SlotsInPlace<'a> {
        let slots = self.slots_in_place(core);
        move |_| slots
    }
}

impl Changeable for Vec<RwLockWriteGuard<'_, Shard>> {
    #[inline(always)]
    fn shard_mut(&mut self, key: &Key) -> &mut Shard {
        &mut self[key.shard as usize]
    }

    #[inline(always)]
    fn index_of<'a>(&'a self, table: u32) -> impl Fn(&Key) -> &'a TableIndex {
        // Found once per chunk: through guards and tables it is four loads.
        let indexes: [_; SHARDS_MAX] = std::array::from_fn(|shard| self[shard % self.len()].index(table));
        move |key| indexes[key.shard as usize % SHARDS_MAX]
    }

    #[inline(always)]
    fn slots_of<'a>(&'a self, core: &Core) -> impl Fn(&Key) -> SlotsInPlace<'a> {
        let slots: [_; SHARDS_MAX] =
            std::array::from_fn(|shard| self[shard % self.len()].slots_in_place(core));
        move |key| slots[key.shard as usize % SHARDS_MAX]
    }
}

/// Call `visit` for every key in order, with what the index says of it at that moment. `visit` may change
/// the shard if `locked` allows it.
///
/// # Errors
/// The first of `visit`, which ends the walk.
#[inline(always)]
pub(crate) fn walk<L: Locked, E>(
    core: &Core,
    locked: &mut L,
    keys: &[Key],
    mut visit: impl FnMut(&mut L, &Key, Option<Found>) -> Result<(), E>,
) -> Result<(), E> {
    let mut found = [None; CHUNK];
    let rows = rows_together(core);
    for keys in keys.chunks(CHUNK) {
        let edits = locked.edits();
        look_ahead(|key| locked.shard(key).index(key.table), keys, &mut found);
        for (keys, found) in keys.chunks(rows).zip(found.chunks(rows)) {
            for (key, found) in keys.iter().zip(found) {
                if let Some(slot) = found.and_then(|found| found.location.slot()) {
                    locked.shard(key).prefetch_row(core, slot);
                }
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
    pub(crate) found: Vec<Option<Found>>,
}

/// What the index of each key, at most [`CHUNK`], says of it.
#[inline]
pub(crate) fn look_ahead<'a>(
    index_of: impl Fn(&Key) -> &'a TableIndex,
    keys: &[Key],
    found: &mut [Option<Found>; CHUNK],
) {
    for key in keys {
        index_of(key).prefetch(key.id, key.hash);
    }
    look(index_of, keys, found);
}

/// What the index says of keys whose entries were asked for.
fn look<'a>(index_of: impl Fn(&Key) -> &'a TableIndex, keys: &[Key], found: &mut [Option<Found>; CHUNK]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("bmi1") {
        // SAFETY: the CPU has these instructions.
        unsafe { look_avx512(index_of, keys, found) };
        return;
    }
    // SAFETY: every CPU has the instructions of `Plain`.
    unsafe { look_with::<Plain>(index_of, keys, found) };
}

/// # Safety
/// The CPU has AVX-512F and BMI1.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,bmi1")]
unsafe fn look_avx512<'a>(
    index_of: impl Fn(&Key) -> &'a TableIndex,
    keys: &[Key],
    found: &mut [Option<Found>; CHUNK],
) {
    // SAFETY: the caller's.
    unsafe { look_with::<Avx512>(index_of, keys, found) };
}

/// # Safety
/// The CPU has the instructions of `C`.
#[inline(always)]
unsafe fn look_with<'a, C: Compare>(
    index_of: impl Fn(&Key) -> &'a TableIndex,
    keys: &[Key],
    found: &mut [Option<Found>; CHUNK],
) {
    let mut beyond = [0_u8; CHUNK];
    let mut count = 0;
    for (number, (key, found)) in keys.iter().zip(&mut *found).enumerate() {
        // SAFETY: the caller's.
        if let Ok(near) = unsafe { index_of(key).find_near::<C>(key.id, key.hash) } {
            *found = near;
        } else {
            beyond[count] = number as u8;
            count += 1;
        }
    }
    for &number in &beyond[..count] {
        let key = &keys[number as usize];
        // SAFETY: the caller's.
        found[number as usize] = unsafe { index_of(key).find_beyond::<C>(key.id, key.hash) };
    }
}
