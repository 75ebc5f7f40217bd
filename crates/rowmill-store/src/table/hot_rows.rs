//! The most looked-up ids of a table, estimated from a sample.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi, ICDT 2005) over every 251st lookup. An id outside the list
//! replaces the entry with the lowest count and inherits that count. So counts are upper bounds, and truly
//! hot ids stay in the list.

/// Ids kept; reports show fewer.
const KEPT: usize = 64;
/// One lookup in this many is counted. A prime, so that it does not align with the shape of a batch. Counting
/// takes as long as looking up ten rows, so a denser sample would slow lookups down.
const SAMPLE: u64 = 251;

/// Sampled counts of the most looked-up ids.
#[derive(Debug, Default)]
pub(crate) struct HotRows {
    counts: Vec<(u64, u64)>,
}

impl HotRows {
    /// Continue from saved counts.
    pub(crate) fn restore(counts: Vec<(u64, u64)>) -> Self {
        Self { counts }
    }

    /// The first lookup that is counted of those that come after `before` lookups, numbered from 0.
    pub(crate) fn next_counted(before: u64) -> u64 {
        before.next_multiple_of(SAMPLE) - before
    }

    /// The entries with the highest counts. No id may occur twice.
    pub(crate) fn most(mut counts: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        counts.sort_unstable_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        counts.truncate(KEPT);
        counts
    }

    /// Count a sample of these lookups, which come after `before` lookups.
    pub(crate) fn observe(&mut self, before: u64, ids: &[u64]) {
        for &id in ids.iter().skip(Self::next_counted(before) as usize).step_by(SAMPLE as usize) {
            self.count(id);
        }
    }

    /// As [`HotRows::observe`], for ids that were looked up `times` times each, in a row.
    pub(crate) fn observe_repeated(&mut self, before: u64, ids: &[u64], times: &[u32]) {
        let mut next = Self::next_counted(before);
        for (&id, &times) in ids.iter().zip(times) {
            let times = u64::from(times);
            while next < times {
                self.count(id);
                next += SAMPLE;
            }
            next -= times;
        }
    }

    fn count(&mut self, id: u64) {
        if let Some(entry) = self.counts.iter_mut().find(|(other, _)| *other == id) {
            entry.1 += 1;
        } else if self.counts.len() < KEPT {
            self.counts.push((id, 1));
        } else if let Some(least) = self.counts.iter_mut().min_by_key(|(_, count)| *count) {
            *least = (id, least.1 + 1);
        }
    }

    /// Ids with their estimated number of lookups, highest first.
    pub(crate) fn top(&self, count: usize) -> Vec<(u64, u64)> {
        let mut top = self.counts.clone();
        top.sort_unstable_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        top.truncate(count);
        for (_, count) in &mut top {
            *count *= SAMPLE;
        }
        top
    }

    /// The raw counts, for a checkpoint.
    pub(crate) fn counts(&self) -> &[(u64, u64)] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_counts_go_on_with_the_sample_of_those_that_were_never_saved() {
        let (mut whole, mut parts) = (HotRows::default(), HotRows::default());
        let mut lookups = 0;
        for batch in 0..200_u64 {
            let ids: Vec<u64> = (0..batch % 7 * 20).map(|i| (batch * i) % 90).collect();
            whole.observe(lookups, &ids);
            parts.observe(lookups, &ids);
            lookups += ids.len() as u64;
            parts = HotRows::restore(parts.counts().to_vec());
        }
        assert_eq!(parts.counts(), whole.counts());
    }

    #[test]
    fn ids_that_repeat_count_as_often_as_they_are_asked_for() {
        let (mut one_by_one, mut at_once) = (HotRows::default(), HotRows::default());
        let mut lookups = 0;
        for batch in 0..300_u64 {
            let ids: Vec<u64> = (0..batch % 5).map(|i| batch * i % 40).collect();
            let times: Vec<u32> = ids.iter().map(|id| (id * batch % 700) as u32).collect();
            at_once.observe_repeated(lookups, &ids, &times);
            for (&id, &times) in ids.iter().zip(&times) {
                one_by_one.observe(lookups, &vec![id; times as usize]);
                lookups += u64::from(times);
            }
        }
        assert_eq!(at_once.counts(), one_by_one.counts());
    }

    #[test]
    fn hot_ids_rise_above_a_stream_of_cold_ones() {
        let mut hot = HotRows::default();
        for batch in 0..2000_u64 {
            let ids: Vec<u64> =
                (0..100).map(|i| if i % 4 == 0 { 7 } else { 1000 + batch * 100 + i }).collect();
            hot.observe(batch * 100, &ids);
        }
        let (id, count) = hot.top(1)[0];
        assert_eq!(id, 7);
        let real = 2000 * 25;
        assert!((real / 2..real * 2).contains(&count), "estimated {count} of {real} lookups");
    }
}
