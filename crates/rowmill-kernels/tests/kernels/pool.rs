//! Compares pooling with a loop over bags, lookups and columns.

use proptest::prelude::*;
use rowmill_kernels::{
    InstructionSet, Lookups, RowArray, RowBags, RowPtr, SKIP, narrow, pool, pool_array_with, pool_rows_with,
    pool_with,
};
use rowmill_rows::{Dtype, IdBag, Pooling};

use crate::data::{Bags, Random, bags, bits, dims};

fn naive(rows: &[Vec<f32>], bags: &Bags, dim: usize, out: &mut [f32], out_stride: usize) {
    for bag in 0..bags.offsets.len() - 1 {
        for column in 0..dim {
            let (mut sum, mut count) = (0.0_f32, 0);
            for (lookup, unique) in bags.bag(bag) {
                let value = rows[unique][column];
                sum = match &bags.weights {
                    Some(weights) => weights[lookup].mul_add(value, sum),
                    None => sum + value,
                };
                count += 1;
            }
            let mean = bags.pooling == Pooling::Mean && count > 0;
            out[bag * out_stride + column] = if mean { sum / count as f32 } else { sum };
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_the_loop(bags in bags(), dim in dims(), gap in 0_usize..4, seed: u64) {
        let mut random = Random::new(seed);
        let rows: Vec<Vec<f32>> = (0..bags.unique).map(|_| random.floats(dim + 3)).collect();
        // Rows start at any float, as they do with optimizer state.
        let shift = random.below(4);
        let pointers: Vec<RowPtr> = rows.iter().map(|row| row[shift..].as_ptr()).collect();
        let rows: Vec<Vec<f32>> = rows.iter().map(|row| row[shift..].to_vec()).collect();
        let stride = dim + gap;
        let before = random.floats((bags.offsets.len() - 1) * stride);
        let mut expected = before.clone();
        naive(&rows, &bags, dim, &mut expected, stride);
        for set in InstructionSet::available() {
            let mut out = before.clone();
            // SAFETY: indices are below `unique`, rows have `dim` floats, `out` a stride per bag.
            unsafe { pool_with(set, &pointers, &bags.lookups(), Dtype::F32, dim, out.as_mut_ptr(), stride) };
            prop_assert_eq!(bits(&out), bits(&expected), "{} dim {}", set, dim);
            // With one address per lookup.
            let Lookups { inverse, offsets, weights, pooling } = bags.lookups();
            let row = |&unique: &u32| if unique == SKIP { std::ptr::null() } else { pointers[unique as usize] };
            let in_turn: Vec<RowPtr> = inverse.iter().map(row).collect();
            let row_bags = RowBags { rows: &in_turn, offsets, weights, pooling };
            out.copy_from_slice(&before);
            // SAFETY: as above: rows have `dim` floats, `out` a stride per bag.
            unsafe { pool_rows_with(set, &row_bags, Dtype::F32, dim, out.as_mut_ptr(), stride) };
            prop_assert_eq!(bits(&out), bits(&expected), "{} dim {}", set, dim);
            // As bfloat16: the same, rounded. Numbers between the vectors of bags do not change.
            let mut halves = vec![0x1234; before.len()];
            let mut rounded = halves.clone();
            for (values, halves) in out.chunks(stride).zip(rounded.chunks_mut(stride)) {
                narrow(&values[..dim], &mut halves[..dim]);
            }
            // SAFETY: as above: indices are below `unique`, rows have `dim` floats, `out` a stride per bag.
            unsafe { pool_with(set, &pointers, &bags.lookups(), Dtype::F32, dim, halves.as_mut_ptr(), stride) };
            prop_assert_eq!(&halves, &rounded, "{} dim {}", set, dim);
        }
    }
}

proptest! {
    /// Rows addressed by id give the same result as rows addressed by pointer.
    #[test]
    fn an_array_agrees_with_a_list_of_its_rows(bags in bags(), dim in dims(), shard_bits in 0..4_u32, seed: u64) {
        const PADDING: u64 = u64::MAX - 1;
        let (mut random, shards) = (Random::new(seed), 1_usize << shard_bits);
        let stride = dim + random.below(3);
        let of_shard = bags.unique.div_ceil(shards);
        let memory: Vec<Vec<f32>> = (0..shards).map(|_| random.floats(of_shard * stride)).collect();
        let firsts: Vec<RowPtr> = memory.iter().map(Vec::as_ptr).collect();
        let rows: Vec<RowPtr> =
            (0..bags.unique).map(|id| memory[id % shards][id / shards * stride..].as_ptr()).collect();
        let array = RowArray { firsts: &firsts, stride: 4 * stride, rows: bags.unique as u64 };
        let Lookups { inverse, offsets, weights, pooling } = bags.lookups();
        let id = |&unique: &u32| if unique == SKIP { PADDING } else { u64::from(unique) };
        let ids: Vec<u64> = inverse.iter().map(id).collect();
        let padding = inverse.contains(&SKIP).then_some(PADDING);
        let bag = IdBag { ids: &ids, offsets, weights, padding, pooling };
        let count = offsets.len() - 1;
        let skipped = random.below(count + 1);
        for set in InstructionSet::available() {
            let mut expected = vec![0.0_f32; count * dim];
            let mut out = vec![0.0_f32; (count - skipped) * dim];
            // SAFETY: rows have `dim` floats, and there is room for every bag.
            let has_all = unsafe {
                pool_with(set, &rows, &bags.lookups(), Dtype::F32, dim, expected.as_mut_ptr(), dim);
                pool_array_with(set, &array, &bag, skipped..count, Dtype::F32, dim, out.as_mut_ptr(), dim)
            };
            prop_assert!(has_all);
            prop_assert_eq!(bits(&out), bits(&expected[skipped * dim..]), "{} dim {}", set, dim);
        }
    }
}

/// Ids without a row are found, wherever they are, and nothing beyond the array is read.
#[test]
fn an_array_tells_of_ids_beyond_its_rows() {
    const ROWS: u64 = 6;
    let memory = [vec![1.0_f32; 3 * 16], vec![2.0; 3 * 16]];
    let firsts: Vec<RowPtr> = memory.iter().map(Vec::as_ptr).collect();
    let array = RowArray { firsts: &firsts, stride: 64, rows: ROWS };
    let offsets = [0, 40, 40, 80];
    for set in InstructionSet::available() {
        let pool_ids = |ids: &[u64], padding| {
            let bag = IdBag { ids, offsets: &offsets, weights: None, padding, pooling: Pooling::Sum };
            let mut out = [0.0_f32; 3 * 16];
            // SAFETY: the array has 6 rows of 16 floats, and there is room for three bags.
            let has_all =
                unsafe { pool_array_with(set, &array, &bag, 0..3, Dtype::F32, 16, out.as_mut_ptr(), 16) };
            (has_all, out[0], out[2 * 16 + 15])
        };
        let ids: Vec<u64> = (0..80).map(|lookup| lookup % ROWS).collect();
        assert_eq!(pool_ids(&ids, None), (true, 60.0, 60.0));
        for position in [0, 39, 40, 79] {
            for beyond in [ROWS, u64::MAX] {
                let mut ids = ids.clone();
                ids[position] = beyond;
                assert!(!pool_ids(&ids, None).0, "{set} id {beyond} at {position}");
                assert!(!pool_ids(&ids, Some(3)).0, "{set} id {beyond} at {position}");
                assert!(pool_ids(&ids, Some(beyond)).0, "{set} padding {beyond} at {position}");
            }
        }
        // The padding id has a row, which is not pooled.
        assert_eq!(pool_ids(&ids, Some(1)), (true, 46.0, 46.0));
    }
}

#[test]
fn a_slice_of_offsets_pools_the_bags_of_that_slice() {
    let rows = [[1.0_f32], [10.0], [100.0]];
    let pointers: Vec<RowPtr> = rows.iter().map(|row| row.as_ptr()).collect();
    let offsets = [0, 2, 3, 5];
    let lookups =
        |offsets| Lookups { inverse: &[0, 1, 2, 2, 0], offsets, weights: None, pooling: Pooling::Sum };
    let (mut whole, mut pieces) = ([0.0; 3], [0.0; 3]);
    // SAFETY: rows of one float, room for three bags.
    unsafe {
        pool(&pointers, &lookups(&offsets), Dtype::F32, 1, whole.as_mut_ptr(), 1);
        pool(&pointers, &lookups(&offsets[..2]), Dtype::F32, 1, pieces.as_mut_ptr(), 1);
        pool(&pointers, &lookups(&offsets[1..]), Dtype::F32, 1, pieces[1..].as_mut_ptr(), 1);
    }
    assert_eq!(whole, [11.0, 100.0, 101.0]);
    assert_eq!(whole, pieces);
}

#[test]
fn empty_offsets_pool_nothing() {
    for offsets in [&[][..], &[0]] {
        let lookups = Lookups { inverse: &[], offsets, weights: None, pooling: Pooling::Mean };
        // SAFETY: nothing is read or written.
        unsafe { pool(&[], &lookups, Dtype::F32, 16, std::ptr::NonNull::<f32>::dangling().as_ptr(), 16) };
    }
}

#[test]
#[should_panic(expected = "weights are defined for sums only")]
fn a_weighted_mean_is_refused() {
    let lookups = Lookups { inverse: &[], offsets: &[0], weights: Some(&[]), pooling: Pooling::Mean };
    // SAFETY: nothing is read or written.
    unsafe { pool(&[], &lookups, Dtype::F32, 16, std::ptr::NonNull::<f32>::dangling().as_ptr(), 16) };
}
