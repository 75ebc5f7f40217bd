//! Rows that left memory before the feed could say what they are: how much of them there may be.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that wait in all shards of a store.
#[derive(Debug)]
pub(crate) struct FeedBacklog {
    bytes: AtomicU64,
    max: u64,
}

impl FeedBacklog {
    pub(crate) fn new(max: u64) -> Self {
        Self { bytes: AtomicU64::new(0), max }
    }

    /// Have `bytes` more wait; whether there is room for them.
    pub(crate) fn add(&self, bytes: usize) -> bool {
        let fits = self.bytes.fetch_add(bytes as u64, Relaxed) + bytes as u64 <= self.max;
        if !fits {
            self.remove(bytes);
        }
        fits
    }

    /// They wait no longer.
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
