//! Which rows that are not in memory are wanted by coming steps.
//!
//! Announcements may wait long before their rows are read. A row that comes in meanwhile, for another step, is kept for
//! theirs too: of the rows in memory that nobody wants within the window of announcements some other leaves. With a window
//! that covers the cache that is Belady's rule. What is remembered are hints: a direct-mapped table, newer entries overwrite
//! older ones.

/// Fingerprints and steps by hash; none before the first.
#[derive(Debug, Default)]
pub(crate) struct Coming {
    /// Upper 16 bits of the entry: fingerprint. Lower: number of the step, modulo 2^16.
    entries: Vec<u32>,
}

impl Coming {
    /// How many bytes to take beside `slots` rows of this many bytes: about a 64th as many, for an entry for every second row at
    /// least and four for each at most. Of rows wanted within a window that fills the memory, as many are not there
    /// as are, or twice as many.
    pub(crate) fn bytes_for(slots: usize, row_bytes: usize) -> usize {
        let entries = slots * (row_bytes / 128).clamp(1, 8) / 2;
        (entries + 1).next_power_of_two() * size_of::<u32>()
    }

    /// Take so many bytes. Another number of entries puts every row elsewhere, so all are forgotten.
    pub(crate) fn resize(&mut self, bytes: usize) {
        self.entries = vec![0; bytes / size_of::<u32>()];
    }

    /// The row of `hash` is wanted by step number `step`.
    pub(crate) fn want(&mut self, hash: u64, step: u64) {
        if let Some(last) = self.entries.len().checked_sub(1) {
            self.entries[hash as usize & last] = fingerprint(hash) | u32::from(step as u16);
        }
    }

    /// The step that wants the row of `hash`, if it is one of the `ahead` after step `now`.
    pub(crate) fn step_of(&self, hash: u64, now: u64, ahead: u64) -> Option<u64> {
        let at = hash as usize & self.entries.len().checked_sub(1)?;
        let entry = self.entries[at];
        let steps = u64::from((entry as u16).wrapping_sub(now as u16));
        (entry & FINGERPRINT == fingerprint(hash) && (1..=ahead).contains(&steps)).then_some(now + steps)
    }

    /// Forget all.
    pub(crate) fn clear(&mut self) {
        self.entries.fill(0);
    }

    /// Bytes of memory taken.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() * size_of::<u32>()
    }
}

const FINGERPRINT: u32 = 0xffff_0000;

/// Never zero, which is an entry of nobody.
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
