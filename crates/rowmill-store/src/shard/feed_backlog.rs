//! Limits the bytes of changed rows that left memory before the feed published them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of unpublished rows without a slot, over all shards of a store.
#[derive(Debug)]
pub(crate) struct FeedBacklog {
    bytes: AtomicU64,
    max: u64,
}

impl FeedBacklog {
    pub(crate) fn new(max: u64) -> Self {
        Self { bytes: AtomicU64::new(0), max }
    }

    /// Add `bytes`. Returns whether they fit within the limit.
    pub(crate) fn add(&self, bytes: usize) -> bool {
        let fits = self.bytes.fetch_add(bytes as u64, Relaxed) + bytes as u64 <= self.max;
        if !fits {
            self.remove(bytes);
        }
        fits
    }

    /// Remove `bytes`, which were published or dropped.
    pub(crate) fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as u64, Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn max(&self) -> u64 {
        self.max
    }
}
