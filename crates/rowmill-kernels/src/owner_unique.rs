//! Owner unique: the distinct rows that several ranks ask one rank for (`FusedRec`, Section 3: deferred to the owner,
//! who knows the category of every id and loses none).

use crate::segment_unique::{UniqueScratch, append_unique};

/// Fill `unique` with the distinct ids of every category, category by category, `unique_counts[c]` of them in order of
/// first occurrence, and `inverse` with the position of every received id in it.
///
/// `received` holds for every rank, one after the other, its ids of every category: `counts[r * C + c]` of them.
///
/// # Panics
/// If lengths do not agree: `inverse` is as long as `received`, `counts` is a whole number of times `unique_counts`, and
/// sums up to the number of ids, which is below 2^31.
pub fn owner_unique(
    received: &[u64],
    counts: &[u32],
    scratch: &mut UniqueScratch,
    unique: &mut Vec<u64>,
    unique_counts: &mut [u32],
    inverse: &mut [u32],
) {
    let categories = unique_counts.len();
    assert_eq!(inverse.len(), received.len(), "one inverse per id");
    assert!(received.len() < 1 << 31, "positions are 32 bits");
    assert!(counts.len().is_multiple_of(categories.max(1)), "a count per rank and category");
    let total: usize = counts.iter().map(|&count| count as usize).sum();
    assert_eq!(total, received.len(), "the counts sum up to the number of ids");
    // The segments of each category, rank by rank.
    let mut segments: Vec<Vec<(&[u64], &mut [u32])>> = (0..categories).map(|_| Vec::new()).collect();
    let (mut ids, mut inverses) = (received, inverse);
    for (number, &count) in counts.iter().enumerate() {
        let (here, rest) = ids.split_at(count as usize);
        let (inverse, inverses_left) = inverses.split_at_mut(count as usize);
        (ids, inverses) = (rest, inverses_left);
        segments[number % categories].push((here, inverse));
    }
    unique.clear();
    for (segments, unique_count) in segments.into_iter().zip(unique_counts) {
        let total = segments.iter().map(|(ids, _)| ids.len()).sum();
        *unique_count = append_unique(total, segments, None, scratch, unique) as u32;
    }
}
