//! The one memory budget for index, rows, buffers and I/O.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::working_memory::WorkingMemory;

/// Cold rows in buffers of all calls together take at most 1/32 of the memory.
const COLD_SHARE: u64 = 32;
/// Ids announced to lookahead and not processed yet take at most 1/16.
const ANNOUNCED_SHARE: u64 = 16;
/// Queued gets, with rows not collected yet, take at most 1/16.
const QUEUED_SHARE: u64 = 16;
/// Opening a checkpoint may exceed the memory by 1/20. So a store that has grown to its limit opens with the
/// same memory, even though its log may have grown since, and its indexes may get other sizes when they are
/// loaded.
const OPENING_SHARE: u64 = 20;
/// Id lists of calls are charged up to 1/16. Calls that need more continue, since their callers hold as much
/// memory.
const LISTS_SHARE: u64 = 16;

/// Why a store needs more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New rows, tables or groups.
    Grow,
    /// Rows, tables and groups of a checkpoint.
    Open,
}

/// The memory budget of a store: how much is left for rows, and how much of it they use. All values are
/// bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    memory: u64,
    row_memory: Option<u64>,
    /// Buffers of fixed size: logs, I/O rings, scratch.
    fixed: AtomicU64,
    /// Buffers and tables of the logs (part of `fixed`). With `row_memory` they count against the memory for
    /// rows.
    log_buffers: AtomicU64,
    /// Index memory of all shards.
    index: AtomicU64,
    /// Memory of resident rows and their bookkeeping.
    rows: AtomicU64,
    /// Cold rows in buffers of calls: read from the device or not yet created.
    pub(crate) cold: Arc<WorkingMemory>,
    /// Ids announced to lookahead.
    pub(crate) announced: Arc<WorkingMemory>,
    /// Queued gets.
    pub(crate) queued: Arc<WorkingMemory>,
    /// Lists of ids, keys and addresses of calls.
    pub(crate) lists: Arc<WorkingMemory>,
}

impl Budget {
    pub(crate) fn new(memory: u64, row_memory: Option<u64>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            memory,
            row_memory,
            fixed: zero(),
            log_buffers: zero(),
            index: zero(),
            rows: zero(),
            cold: WorkingMemory::new(memory / COLD_SHARE),
            announced: WorkingMemory::new(memory / ANNOUNCED_SHARE),
            queued: WorkingMemory::new(memory / QUEUED_SHARE),
            lists: WorkingMemory::new(memory / LISTS_SHARE),
        }
    }

    /// The whole budget.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// The memory from which rows and log buffers are sized before anything is allocated.
    pub(crate) fn row_target(&self) -> u64 {
        self.row_memory.unwrap_or(self.memory / 2)
    }

    /// Whether `row_memory` fixes the memory for rows. If so, bookkeeping of rows is not charged to it.
    pub(crate) fn rows_are_fixed(&self) -> bool {
        self.row_memory.is_some()
    }

    pub(crate) fn add_fixed(&self, bytes: u64) {
        self.fixed.fetch_add(bytes, Relaxed);
    }

    /// Record a changed size of I/O memory.
    pub(crate) fn resize_fixed(&self, before: u64, after: u64) {
        self.fixed.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// Record a changed size of a log's memory.
    pub(crate) fn resize_log_buffers(&self, before: u64, after: u64) {
        // Wrapping arithmetic adds the difference, whether positive or negative.
        let difference = after.wrapping_sub(before);
        self.log_buffers.fetch_add(difference, Relaxed);
        self.fixed.fetch_add(difference, Relaxed);
    }

    /// Take `bytes` for an index, if the memory then still holds `row_bytes_min` of rows. Returns whether it did.
    pub(crate) fn take_index(&self, bytes: u64, row_bytes_min: u64, purpose: Purpose) -> bool {
        let limit = self.limit(purpose);
        let others = self.bytes_beside_index() + row_bytes_min;
        // One step, so that shards that grow at the same time do not take the same memory.
        self.index
            .fetch_update(Relaxed, Relaxed, |index| {
                (others + index + bytes <= limit).then_some(index + bytes)
            })
            .is_ok()
    }

    /// Record a changed size of an index.
    pub(crate) fn resize_index(&self, before: usize, after: usize) {
        if after >= before {
            self.index.fetch_add((after - before) as u64, Relaxed);
        } else {
            self.index.fetch_sub((before - after) as u64, Relaxed);
        }
    }

    pub(crate) fn index_bytes(&self) -> u64 {
        self.index.load(Relaxed)
    }

    pub(crate) fn fixed_bytes(&self) -> u64 {
        self.fixed.load(Relaxed)
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    /// Bytes that running calls claim now.
    pub(crate) fn working_bytes(&self) -> u64 {
        self.working().map(WorkingMemory::used).sum()
    }

    fn working(&self) -> impl Iterator<Item = &WorkingMemory> {
        [&self.cold, &self.announced, &self.queued, &self.lists].into_iter().map(|memory| &**memory)
    }

    /// Bytes of everything but rows.
    fn other_bytes(&self) -> u64 {
        self.bytes_beside_index() + self.index_bytes()
    }

    /// Bytes of everything but rows and indexes.
    fn bytes_beside_index(&self) -> u64 {
        self.fixed_bytes() + self.working().map(WorkingMemory::charged).sum::<u64>()
    }

    /// Bytes that resident rows may use now.
    pub(crate) fn row_limit(&self) -> u64 {
        let left = self.memory.saturating_sub(self.other_bytes());
        match self.row_memory {
            Some(rows) => rows.saturating_sub(self.log_buffers.load(Relaxed)).min(left),
            None => left,
        }
    }

    /// Take `bytes` for rows, unless that exceeds the limit. Returns whether it was taken.
    pub(crate) fn take_rows(&self, bytes: u64) -> bool {
        let limit = self.row_limit();
        self.rows
            .fetch_update(Relaxed, Relaxed, |used| (used + bytes <= limit).then_some(used + bytes))
            .is_ok()
    }

    /// Take `bytes` for rows even beyond the limit: for the few slots that a shard needs to work at all.
    pub(crate) fn force_rows(&self, bytes: u64) {
        self.rows.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn give_rows(&self, bytes: u64) {
        self.rows.fetch_sub(bytes, Relaxed);
    }

    /// By how many bytes rows exceed their limit.
    pub(crate) fn rows_over(&self) -> u64 {
        self.row_bytes().saturating_sub(self.row_limit())
    }

    /// Which option is too small to hold `row_bytes` of rows: its name, its value, and the smallest
    /// sufficient value.
    pub(crate) fn too_small_for_rows(
        &self,
        row_bytes: u64,
        purpose: Purpose,
    ) -> Option<(&'static str, u64, u64)> {
        let of_rows = self.log_buffers.load(Relaxed) + row_bytes;
        match self.row_memory {
            Some(given) if given + self.excess(purpose) < of_rows => Some(("row_memory", given, of_rows)),
            _ if self.allows(row_bytes, purpose) => None,
            _ => Some(("memory", self.memory, self.needed(row_bytes))),
        }
    }

    /// Whether the memory suffices for `bytes` besides everything but rows.
    pub(crate) fn allows(&self, bytes: u64, purpose: Purpose) -> bool {
        self.needed(bytes) <= self.limit(purpose)
    }

    fn limit(&self, purpose: Purpose) -> u64 {
        self.memory + self.excess(purpose)
    }

    /// By how many bytes the memory may be exceeded.
    fn excess(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Grow => 0,
            Purpose::Open => self.memory / OPENING_SHARE,
        }
    }

    /// The smallest memory with which this store works, given its memory for everything but rows.
    pub(crate) fn needed(&self, row_bytes_min: u64) -> u64 {
        self.other_bytes() + row_bytes_min
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_that_grow_at_the_same_time_stay_inside_the_memory() {
        for _ in 0..20 {
            let budget = Budget::new(1 << 20, None);
            let take = || while budget.take_index(4096, 1000, Purpose::Grow) {};
            std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(take))));
            assert_eq!(budget.index_bytes(), ((1 << 20) - 1000) / 4096 * 4096);
            // Opening may take a twentieth more.
            assert!(budget.take_index(52_000, 1000, Purpose::Open));
            assert!(!budget.take_index(4096, 1000, Purpose::Open));
        }
    }
}
