//! Infinite sequences of ids, as in typical workloads.

use crate::{Permutation, Rng64, Zipf};

/// Uniform ids in `[0, size)`.
#[derive(Clone, Debug)]
pub struct UniformIds {
    size: u64,
    rng: Rng64,
}

impl UniformIds {
    /// Uniform ids in `[0, size)`.
    ///
    /// # Panics
    /// When `size` is 0.
    pub fn new(size: u64, seed: u64) -> Self {
        assert!(size > 0, "size must be at least 1");
        Self { size, rng: Rng64::new(seed) }
    }

    /// Overwrite `ids` with the next ids.
    pub fn fill(&mut self, ids: &mut [u64]) {
        ids.fill_with(|| self.rng.below(self.size));
    }
}

impl Iterator for UniformIds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(self.rng.below(self.size))
    }
}

/// How the hot ids change over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Number of draws between two changes.
    pub every: u64,
    /// Size of the hot set: this many of the most frequent ids.
    pub hot: u64,
    /// Fraction of the hot set that is swapped with ids outside it.
    pub share: f64,
}

/// Zipf-distributed ids in `[0, size)`. Id 0 is the most frequent one unless scrambled.
#[derive(Clone, Debug)]
pub struct ZipfIds {
    size: u64,
    zipf: Zipf,
    rng: Rng64,
    scramble: Option<Permutation>,
    drift: Option<Drifting>,
}

#[derive(Clone, Debug)]
struct Drifting {
    drift: Drift,
    /// The current rank at each original rank: 4 bytes per id.
    ranks: Vec<u32>,
    rng: Rng64,
    drawn: u64,
}

impl ZipfIds {
    /// Ids in `[0, size)`; id k has a probability proportional to (k + 1)^-exponent.
    pub fn new(size: u64, exponent: f64, seed: u64) -> Self {
        Self { size, zipf: Zipf::new(size, exponent), rng: Rng64::new(seed), scramble: None, drift: None }
    }

    /// Spread the frequent ids over the whole range, by the seed.
    #[must_use]
    pub fn scrambled(self, seed: u64) -> Self {
        let scramble = Some(Permutation::new(self.size, seed));
        Self { scramble, ..self }
    }

    /// Let the hot set change. Replacements come from a random sequence of their own, so that the drawn ranks
    /// equal the ranks of the same workload without drift.
    ///
    /// # Panics
    /// When the hot set is empty or contains all ids, `share` is not in [0, 1], `every` is 0, or there are
    /// 2^32 ids or more.
    #[must_use]
    pub fn drifting(self, drift: Drift, seed: u64) -> Self {
        let ids = u32::try_from(self.size).expect("fewer than 2^32 ids drift");
        assert!(drift.hot > 0 && drift.hot < self.size && drift.every > 0, "{drift:?} of {ids} ids");
        assert!((0.0..=1.0).contains(&drift.share), "{drift:?}");
        let drift = Drifting { drift, ranks: (0..ids).collect(), rng: Rng64::new(seed), drawn: 0 };
        Self { drift: Some(drift), ..self }
    }

    /// Overwrite `ids` with the next ids.
    pub fn fill(&mut self, ids: &mut [u64]) {
        ids.fill_with(|| self.draw());
    }

    fn draw(&mut self) -> u64 {
        let rank = self.zipf.draw(&mut self.rng);
        let rank = self.drift.as_mut().map_or(rank, |drifting| drifting.place(rank));
        self.scramble.as_ref().map_or(rank, |scramble| scramble.of(rank))
    }
}

impl Iterator for ZipfIds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(self.draw())
    }
}

impl Drifting {
    fn place(&mut self, rank: u64) -> u64 {
        if self.drawn == self.drift.every {
            self.drawn = 0;
            self.change();
        }
        self.drawn += 1;
        u64::from(self.ranks[rank as usize])
    }

    /// Swap a fraction of the hot ranks, all different, with random ranks outside.
    fn change(&mut self) {
        let hot = self.drift.hot;
        let cold = self.ranks.len() as u64 - hot;
        let order = Permutation::new(hot, self.rng.next_u64());
        for turn in 0..(hot as f64 * self.drift.share).round() as u64 {
            let other = hot + self.rng.below(cold);
            self.ranks.swap(order.of(turn) as usize, other as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    /// The `count` most frequent of `ids`.
    fn hottest(ids: impl Iterator<Item = u64>, count: usize) -> BTreeSet<u64> {
        let mut counts: HashMap<u64, u64> = HashMap::new();
        for id in ids {
            *counts.entry(id).or_default() += 1;
        }
        let mut ids: Vec<u64> = counts.keys().copied().collect();
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(counts[id]));
        ids.into_iter().take(count).collect()
    }

    #[test]
    fn uniform_ids_cover_their_range() {
        let seen: BTreeSet<u64> = UniformIds::new(100, 1).take(5_000).collect();
        assert_eq!(seen, (0..100).collect());
        let mut ids = [0; 8];
        UniformIds::new(1 << 40, 2).fill(&mut ids);
        assert_eq!(ids.to_vec(), UniformIds::new(1 << 40, 2).take(8).collect::<Vec<_>>());
    }

    #[test]
    fn scrambling_renames_ids_and_changes_nothing_else() {
        let plain: Vec<u64> = ZipfIds::new(10_000, 1.05, 3).take(1_000).collect();
        let names = Permutation::new(10_000, 8);
        let mut scrambled = vec![0; 1_000];
        ZipfIds::new(10_000, 1.05, 3).scrambled(8).fill(&mut scrambled);
        assert_eq!(scrambled, plain.iter().map(|id| names.of(*id)).collect::<Vec<_>>());
        assert!(scrambled.iter().any(|id| *id > 5_000));
    }

    #[test]
    fn drift_replaces_its_share_of_the_hot_set_and_no_more() {
        const EVERY: u64 = 200_000;
        let drift = Drift { every: EVERY, hot: 50, share: 0.2 };
        let mut ids = ZipfIds::new(5_000, 1.2, 4).drifting(drift, 5);
        let mut sets = (0..4).map(|_| hottest(ids.by_ref().take(EVERY as usize), 50)).collect::<Vec<_>>();
        let first = sets.remove(0);
        assert!(first.iter().filter(|id| **id < 50).count() >= 45, "nothing has drifted yet");
        let mut before = first;
        for set in sets {
            let stayed = set.intersection(&before).count();
            // Forty of fifty stay; ids at the edge of the hot set enter and leave by chance.
            assert!((34..=43).contains(&stayed), "{stayed} of 50 stayed");
            before = set;
        }
    }

    #[test]
    fn a_drifting_workload_still_names_every_id_once() {
        let drift = Drift { every: 10, hot: 30, share: 0.5 };
        let mut ids = ZipfIds::new(100, 0.5, 6).drifting(drift, 7);
        ids.by_ref().take(1_000).for_each(drop);
        let mut ranks = ids.drift.unwrap().ranks;
        assert_ne!(ranks, (0..100).collect::<Vec<_>>());
        ranks.sort_unstable();
        assert_eq!(ranks, (0..100).collect::<Vec<_>>());
    }
}
