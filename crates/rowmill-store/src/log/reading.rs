//! Who reads: keeps the places of freed segments from being written again under a reader.
//!
//! A reader begins before it looks row numbers up and ends after it has used the bytes. A place freed
//! after some reader began rests until that reader has ended. This is reclamation by epochs with one
//! epoch per freed place; beginning and ending cost one short lock per batch.

use std::collections::BTreeMap;

use rowmill_sync::Mutex;

use crate::ranks;

#[derive(Debug, Default)]
pub(super) struct Readings {
    stamps: Mutex<Stamps, ranks::LogReadings>,
}

#[derive(Debug, Default)]
struct Stamps {
    now: u64,
    active: BTreeMap<u64, u32>,
}

impl Readings {
    /// A reader begins; hand the stamp back to [`Readings::end`].
    pub(super) fn begin(&self) -> u64 {
        let mut stamps = self.stamps.lock();
        let now = stamps.now;
        *stamps.active.entry(now).or_default() += 1;
        now
    }

    /// The reader that got `stamp` has ended.
    pub(super) fn end(&self, stamp: u64) {
        let mut stamps = self.stamps.lock();
        let count = stamps.active.get_mut(&stamp).expect("a reader ends once");
        *count -= 1;
        if *count == 0 {
            stamps.active.remove(&stamp);
        }
    }

    /// Stamp a place that is freed now.
    pub(super) fn freed(&self) -> u64 {
        let mut stamps = self.stamps.lock();
        stamps.now += 1;
        stamps.now
    }

    /// Places stamped up to this have no reader left.
    pub(super) fn clear_up_to(&self) -> u64 {
        self.stamps.lock().active.first_key_value().map_or(u64::MAX, |(&oldest, _)| oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_rests_until_the_readers_before_it_end() {
        let readings = Readings::default();
        let early = readings.begin();
        let freed = readings.freed();
        let late = readings.begin();
        assert!(readings.clear_up_to() < freed);
        readings.end(early);
        assert!(readings.clear_up_to() >= freed, "the late reader cannot have seen the place");
        readings.end(late);
        assert_eq!(readings.clear_up_to(), u64::MAX);
    }
}
