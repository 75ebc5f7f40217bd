//! Counts how often ids were asked for, in a fixed number of bytes.
//!
//! A count-min sketch (Cormode and Muthukrishnan, Journal of Algorithms 2005) of four rows of one-byte
//! counters. It uses the conservative update of Estan and Varghese (SIGCOMM 2002): only the smallest of an
//! id's counters grow. Counts stop at a limit. An id is never counted too low. It is counted too high only if
//! all its counters are shared with ids that were asked for more often.

use rowmill_splitmix::{STEP, mix};

const ROWS: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sketch {
    counters: Vec<u8>,
    seed: u64,
}

impl Sketch {
    /// An empty sketch of `bytes` counters; `bytes` is a power of two and at least four.
    pub(crate) fn new(bytes: usize, seed: u64) -> Self {
        debug_assert!(bytes.is_power_of_two() && bytes >= ROWS);
        Self { counters: vec![0; bytes], seed }
    }

    /// Count `id` once more, up to `limit`. Returns its count.
    pub(crate) fn count(&mut self, id: u64, limit: u8) -> u8 {
        let places = self.places(id);
        let counted = self.least(&places);
        if counted >= limit {
            return counted;
        }
        for place in places {
            let counter = &mut self.counters[place];
            *counter = (*counter).max(counted + 1);
        }
        counted + 1
    }

    /// The count of `id`.
    pub(crate) fn counted(&self, id: u64) -> u8 {
        self.least(&self.places(id))
    }

    /// The counters, for a checkpoint.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.counters
    }

    /// Restore the counters of a checkpoint. Returns whether their number matches.
    pub(crate) fn restore(&mut self, counters: Vec<u8>) -> bool {
        let fits = counters.len() == self.counters.len();
        if fits {
            self.counters = counters;
        }
        fits
    }

    /// Raise every counter to at least the given one. Returns whether their number matches.
    pub(crate) fn merge(&mut self, counters: &[u8]) -> bool {
        let fits = counters.len() == self.counters.len();
        if fits {
            self.counters.iter_mut().zip(counters).for_each(|(own, &other)| *own = (*own).max(other));
        }
        fits
    }

    fn least(&self, places: &[usize; ROWS]) -> u8 {
        places.iter().map(|&place| self.counters[place]).min().expect("a sketch has rows")
    }

    /// The id's counter in every row.
    fn places(&self, id: u64) -> [usize; ROWS] {
        let width = self.counters.len() / ROWS;
        let first = mixed(id ^ self.seed);
        // Odd, so that the rows use different counters (Kirsch and Mitzenmacher, ESA 2006).
        let second = mixed(first) | 1;
        std::array::from_fn(|row| {
            let hash = first.wrapping_add(second.wrapping_mul(row as u64));
            row * width + (hash >> 16) as usize % width
        })
    }
}

/// Mix the bits of `value`, so that neighbouring values and 0 give unrelated results.
fn mixed(value: u64) -> u64 {
    mix(value.wrapping_add(STEP))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn no_id_is_counted_too_low_and_few_too_high() {
        let mut sketch = Sketch::new(1 << 14, 5);
        let mut exact: HashMap<u64, u8> = HashMap::new();
        for step in 0..6000_u64 {
            let id = mixed(step) % 2000 * (1 << 40);
            let count = exact.entry(id).or_default();
            *count = (*count + 1).min(7);
            assert!(sketch.count(id, 7) >= *count);
        }
        let wrong = exact.iter().filter(|&(&id, &count)| sketch.counted(id) != count).count();
        assert!(wrong * 100 < exact.len(), "{wrong} of {} ids counted too high", exact.len());
        assert!(exact.keys().all(|&id| sketch.counted(id) <= 7));
    }

    #[test]
    fn a_full_sketch_admits_all_and_saved_counters_go_on() {
        let mut small = Sketch::new(1 << 10, 5);
        for id in 0..100_000 {
            small.count(id, 2);
        }
        assert_eq!(small.counted(1 << 50), 2);
        let mut again = Sketch::new(1 << 10, 5);
        assert!(!again.restore(vec![0; 5]));
        assert!(again.restore(small.bytes().to_vec()));
        assert_eq!(again, small);
    }
}
