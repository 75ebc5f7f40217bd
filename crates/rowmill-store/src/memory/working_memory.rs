//! Memory that calls claim for a time: rows read from the device, announced ids, queued gets, lists of large
//! calls.
//!
//! The budget is charged for the maximum that was claimed at once. The heap keeps freed memory for the next
//! call, so giving it back to the rows would count it twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Working memory for one purpose, with a limit in bytes.
#[derive(Debug)]
pub(crate) struct WorkingMemory {
    limit: u64,
    used: AtomicU64,
    charged: AtomicU64,
}

/// Claimed bytes of a working memory. Dropping the claim frees them.
#[derive(Debug)]
pub(crate) struct Claim {
    memory: Arc<WorkingMemory>,
    bytes: u64,
}

impl WorkingMemory {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0), charged: AtomicU64::new(0) })
    }

    /// Claim `bytes`, or nothing if that exceeds the limit.
    pub(crate) fn try_claim(self: &Arc<Self>, bytes: u64) -> Option<Claim> {
        let take = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.limit);
        let used = self.used.fetch_update(Relaxed, Relaxed, take).ok()?;
        Some(self.claimed(used, bytes))
    }

    /// Claim as many of `bytes` as the limit allows, but always at least `least`, which the call needs to
    /// continue.
    pub(crate) fn claim(self: &Arc<Self>, bytes: u64, least: u64) -> Claim {
        let grant = |used: u64| bytes.min(self.limit.saturating_sub(used)).max(least);
        let used = self.used.fetch_update(Relaxed, Relaxed, |used| Some(used + grant(used)));
        let used = used.expect("the closure always returns a value");
        self.claimed(used, grant(used))
    }

    fn claimed(self: &Arc<Self>, used_before: u64, bytes: u64) -> Claim {
        self.charged.fetch_max(used_before + bytes, Relaxed);
        Claim { memory: Arc::clone(self), bytes }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes claimed now.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The maximum of bytes that were claimed at once.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Relaxed)
    }
}

impl Claim {
    /// Shrink the claim to at most `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let given = self.bytes.saturating_sub(bytes);
        self.bytes -= given;
        self.memory.used.fetch_sub(given, Relaxed);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_end_at_the_limit_and_the_most_stays_charged() {
        let memory = WorkingMemory::new(100);
        let first = memory.try_claim(60).unwrap();
        assert!(memory.try_claim(41).is_none() && memory.try_claim(u64::MAX).is_none());
        let mut second = memory.claim(50, 10);
        assert_eq!((second.bytes, memory.used(), memory.charged()), (40, 100, 100));
        let third = memory.claim(50, 10);
        assert_eq!((third.bytes, memory.used()), (10, 110), "the least is granted beyond the limit");
        second.shrink(15);
        second.shrink(30);
        drop((first, third));
        assert_eq!((second.bytes, memory.used(), memory.charged()), (15, 15, 110));
        drop(second);
        assert_eq!((memory.used(), memory.charged()), (0, 110));
    }
}
