//! Hints about cold rows that coming steps have announced.
//!
//! An announcement may wait long before its rows are read. If such a row is loaded earlier for another step,
//! it is marked for the announced step. Eviction then prefers rows that no announced step needs. With a
//! window of announcements that covers the cache, this is Belady's rule. The hints are a direct-mapped table:
//! newer entries overwrite older ones.

/// Fingerprints and steps, indexed by hash. Empty until the first announcement.
#[derive(Debug, Default)]
pub(crate) struct Coming {
    /// Upper 16 bits of an entry: fingerprint. Lower 16 bits: number of the step modulo 2^16.
    entries: Vec<u32>,
}

impl Coming {
    /// Bytes of the table for `slots` rows of `row_bytes` bytes: about 1/64 of the memory of the rows, with
    /// half an entry to four entries per row. When announced rows fill the memory, about as many or twice as
    /// many other announced rows are cold.
    pub(crate) fn bytes_for(slots: usize, row_bytes: usize) -> usize {
        let entries = slots * (row_bytes / 128).clamp(1, 8) / 2;
        (entries + 1).next_power_of_two() * size_of::<u32>()
    }

    /// Use this many bytes. Every row then maps to another entry, so all hints are dropped.
    pub(crate) fn resize(&mut self, bytes: usize) {
        self.entries = vec![0; bytes / size_of::<u32>()];
    }

    /// Step number `step` needs the row of `hash`.
    pub(crate) fn want(&mut self, hash: u64, step: u64) {
        if let Some(last) = self.entries.len().checked_sub(1) {
            self.entries[hash as usize & last] = fingerprint(hash) | u32::from(step as u16);
        }
    }

    /// The step that needs the row of `hash`, if it is one of the `ahead` steps after step `now`.
    pub(crate) fn step_of(&self, hash: u64, now: u64, ahead: u64) -> Option<u64> {
        let at = hash as usize & self.entries.len().checked_sub(1)?;
        let entry = self.entries[at];
        let steps = u64::from((entry as u16).wrapping_sub(now as u16));
        (entry & FINGERPRINT == fingerprint(hash) && (1..=ahead).contains(&steps)).then_some(now + steps)
    }

    /// Drop all hints.
    pub(crate) fn clear(&mut self) {
        self.entries.fill(0);
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() * size_of::<u32>()
    }
}

const FINGERPRINT: u32 = 0xffff_0000;

/// Never zero, which marks an empty entry.
fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32 & FINGERPRINT | 0x8000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_wanted_until_its_step_begins() {
        for now in [0, 5, 65_530, 1 << 40] {
            let mut coming = Coming::default();
            coming.want(7 << 48, now + 20);
            assert_eq!(coming.step_of(7 << 48, now, 63), None, "there are no entries");
            coming.resize(Coming::bytes_for(100, 64));
            assert_eq!(coming.step_of(7 << 48, now, 63), None);
            coming.want(7 << 48, now + 20);
            for passed in 0..20 {
                assert_eq!(coming.step_of(7 << 48, now + passed, 63), Some(now + 20));
            }
            for passed in [20, 21, 100, 1000] {
                assert_eq!(coming.step_of(7 << 48, now + passed, 63), None, "{passed} steps later");
            }
        }
    }

    #[test]
    fn another_row_is_not_taken_for_it() {
        let mut coming = Coming::default();
        coming.resize(Coming::bytes_for(100, 64));
        coming.want(7 << 48 | 3, 20);
        assert_eq!(coming.step_of(9 << 48 | 3, 1, 63), None);
        assert_eq!(coming.step_of(7 << 48 | 4, 1, 63), None);
        coming.want(9 << 48 | 3, 21);
        assert_eq!(coming.step_of(9 << 48 | 3, 1, 63), Some(21));
        assert_eq!(coming.step_of(7 << 48 | 3, 1, 63), None, "it was overwritten");
        coming.clear();
        assert_eq!(coming.step_of(9 << 48 | 3, 1, 63), None);
    }
}
