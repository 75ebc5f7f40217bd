//! Compares segment unique with a map from id to first position.

use std::collections::HashMap;

use proptest::prelude::*;
use rowmill_kernels::{SKIP, UniqueScratch, segment_unique};

fn naive(ids: &[u64], padding: Option<u64>) -> (Vec<u64>, Vec<u32>) {
    let (mut unique, mut positions) = (Vec::new(), HashMap::new());
    let inverse = ids
        .iter()
        .map(|&id| {
            if padding == Some(id) {
                return SKIP;
            }
            *positions.entry(id).or_insert_with(|| {
                unique.push(id);
                unique.len() as u32 - 1
            })
        })
        .collect();
    (unique, inverse)
}

fn check(ids: &[u64], padding: Option<u64>, scratch: &mut UniqueScratch) {
    let (mut unique, mut inverse) = (vec![77], vec![88; ids.len()]);
    let count = segment_unique(ids, padding, scratch, &mut unique, &mut inverse);
    assert_eq!((&unique, &inverse), (&naive(ids, padding).0, &naive(ids, padding).1));
    assert_eq!(count, unique.len());
}

/// Typical ids: few, many, in arithmetic progressions of any stride, and at the ends of the range.
fn ids() -> impl Strategy<Value = Vec<u64>> {
    let id = prop_oneof![
        0_u64..50,
        any::<u64>(),
        prop::sample::select(vec![0, 1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, u64::MAX]),
    ];
    prop_oneof![
        prop::collection::vec(id, 0..400),
        (0_u64..3000, 0_u32..64, any::<u64>()).prop_map(|(count, shift, start)| {
            (0..count).map(|i| start.wrapping_add(i << shift)).collect()
        }),
    ]
}

proptest! {
    #[test]
    fn agrees_with_the_map(batches in prop::collection::vec((ids(), any::<bool>()), 1..4)) {
        // One scratch for all batches: entries of one batch must not affect the next.
        let mut scratch = UniqueScratch::default();
        for (ids, padded) in batches {
            let padding = if padded { Some(ids.last().copied().unwrap_or(0)) } else { None };
            check(&ids, padding, &mut scratch);
        }
    }
}

#[test]
fn the_smallest_and_largest_ids_are_ordinary_ids() {
    let ids = [u64::MAX, 0, (1 << 63) - 1, u64::MAX, 1 << 63, 0];
    for padding in [None, Some(u64::MAX), Some(0), Some(5)] {
        check(&ids, padding, &mut UniqueScratch::default());
    }
}

#[test]
fn a_batch_of_padding_has_no_unique_ids() {
    check(&[9; 100], Some(9), &mut UniqueScratch::default());
}

#[test]
fn a_large_batch_of_scattered_and_repeated_ids() {
    let mut random = crate::data::Random::new(3);
    let ids: Vec<u64> = (0..100_000).map(|_| random.below(30_000) as u64 * 0x1_0000_0001).collect();
    check(&ids, None, &mut UniqueScratch::default());
    assert!(naive(&ids, None).0.len() > 20_000);
}
