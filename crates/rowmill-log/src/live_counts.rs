//! How many rows of each place the index or an unfinished checkpoint still names.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places of the first chunk; each further chunk has twice as many.
const FIRST: u32 = 64;

/// One counter per place, reachable without a lock. Counters come in chunks, chunk `k` holding `64 << k`, so
/// that they never move once allocated.
#[derive(Debug, Default)]
pub(super) struct LiveCounts {
    chunks: [OnceLock<Box<[AtomicU32]>>; 26],
}

impl LiveCounts {
    /// Allocate the counter of `place`.
    pub(super) fn cover(&self, place: u32) {
        let (chunk, _) = split(place);
        self.chunks[chunk]
            .get_or_init(|| (0..u64::from(FIRST) << chunk).map(|_| AtomicU32::new(0)).collect());
    }

    /// The number of retained rows in `place`.
    pub(super) fn of(&self, place: u32) -> u32 {
        self.counter(place).load(Ordering::Acquire)
    }

    /// Add `rows` to the counter of `place`.
    pub(super) fn retain(&self, place: u32, rows: u32) {
        self.counter(place).fetch_add(rows, Ordering::AcqRel);
    }

    /// Subtract one. Returns true when the count reached 0.
    pub(super) fn release(&self, place: u32) -> bool {
        let before = self.counter(place).fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a row of place {place} was released more often than retained");
        before == 1
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().filter_map(OnceLock::get).map(|chunk| chunk.len() * size_of::<AtomicU32>()).sum()
    }

    fn counter(&self, place: u32) -> &AtomicU32 {
        let (chunk, at) = split(place);
        &self.chunks[chunk].get().expect("the counter of a place is made before its first row")[at]
    }
}

fn split(place: u32) -> (usize, usize) {
    let shifted = u64::from(place) + u64::from(FIRST);
    let chunk = shifted.ilog2() - FIRST.ilog2();
    (chunk as usize, (shifted - (u64::from(FIRST) << chunk)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_segment_has_its_own_counter() {
        let expected = (0..6).flat_map(|chunk| (0..64usize << chunk).map(move |at| (chunk, at)));
        for (place, expected) in expected.enumerate() {
            assert_eq!(split(place as u32), expected);
        }
        assert!(split((1 << 31) - 1).0 < 26);
    }

    #[test]
    fn the_last_release_returns_true() {
        let live = LiveCounts::default();
        live.cover(200);
        live.retain(200, 1);
        live.retain(200, 1);
        assert!(!live.release(200));
        assert!(live.release(200));
        assert_eq!(live.of(200), 0);
    }
}
