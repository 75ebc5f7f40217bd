//! Active readers of the log. A place that a reader may still read is not rewritten.
//!
//! A reader of rows begins before it looks up row numbers and ends after it has used the bytes. A place freed
//! after some reader began is reusable only once that reader has ended. This is epoch-based reclamation with
//! one epoch per freed place. Beginning and ending cost one short lock per batch.
//!
//! A reader of a whole segment protects only that place. Cleaning is such a reader most of the time and must
//! not delay the reuse of all other places.

use std::collections::BTreeMap;

use rowmill_sync::{Mutex, ranks};

#[derive(Debug, Default)]
pub(super) struct Readings {
    stamps: Mutex<Stamps, ranks::LogReadings>,
}

#[derive(Debug, Default)]
struct Stamps {
    now: u64,
    active: BTreeMap<u64, u32>,
    /// Places whose whole segment is being read, once for each of its readers.
    whole: Vec<u32>,
}

/// Which freed places may be rewritten.
pub(super) struct Clear {
    /// No reader of rows can still read places freed with a stamp up to this.
    stamp: u64,
    /// Places whose whole segment is being read; these may not be rewritten.
    whole: Vec<u32>,
}

impl Clear {
    /// Whether readers of rows allow a place with this stamp to be rewritten.
    pub(super) fn of_rows(&self, stamp: u64) -> bool {
        stamp <= self.stamp
    }

    /// Whether the whole segment in `place` is being read.
    pub(super) fn is_read(&self, place: u32) -> bool {
        self.whole.contains(&place)
    }
}

impl Readings {
    /// A reader begins. Pass the returned stamp to [`Readings::end`].
    pub(super) fn begin(&self) -> u64 {
        let mut stamps = self.stamps.lock();
        let now = stamps.now;
        *stamps.active.entry(now).or_default() += 1;
        now
    }

    /// The reader that got `stamp` has ended.
    pub(super) fn end(&self, stamp: u64) {
        let mut stamps = self.stamps.lock();
        let count = stamps.active.get_mut(&stamp).expect("each reader ends exactly once");
        *count -= 1;
        if *count == 0 {
            stamps.active.remove(&stamp);
        }
    }

    /// Take a stamp for a place that is freed now.
    pub(super) fn freed(&self) -> u64 {
        let mut stamps = self.stamps.lock();
        stamps.now += 1;
        stamps.now
    }

    /// A reader of the whole segment in `place` begins. It ends when the value is dropped.
    pub(super) fn whole(&self, place: u32) -> Whole<'_> {
        self.stamps.lock().whole.push(place);
        Whole { readings: self, place }
    }

    /// Which freed places have no reader.
    pub(super) fn clear(&self) -> Clear {
        let stamps = self.stamps.lock();
        let oldest = stamps.active.first_key_value();
        Clear { stamp: oldest.map_or(u64::MAX, |(&oldest, _)| oldest), whole: stamps.whole.clone() }
    }
}

/// A reader of a whole segment.
#[must_use = "the place is held only while this lives"]
pub(super) struct Whole<'a> {
    readings: &'a Readings,
    place: u32,
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        let whole = &mut self.readings.stamps.lock().whole;
        let at = whole.iter().position(|&place| place == self.place).expect("each reader ends exactly once");
        whole.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_not_reused_until_earlier_readers_end() {
        let readings = Readings::default();
        let early = readings.begin();
        let freed = readings.freed();
        let late = readings.begin();
        assert!(!readings.clear().of_rows(freed));
        readings.end(early);
        assert!(readings.clear().of_rows(freed), "the late reader cannot have seen the place");
        readings.end(late);
        assert!(readings.clear().of_rows(u64::MAX));
    }
}
