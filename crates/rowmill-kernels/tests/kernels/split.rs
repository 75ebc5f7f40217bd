//! Compares split rows with rows of 32-bit floats: updates and full reads bit for bit, and lookups of the
//! upper halves only.

use proptest::prelude::*;
use rowmill_kernels::{
    InstructionSet, LookupOrder, RowPtr, RowUpdater, Update, gather_with, join_with, pool_with,
    split_sgd_with, split_with,
};
use rowmill_rows::{Dtype, OptimizerSpec};

use crate::data::{Bags, Random, bags, bits, dims};
use crate::optimizers::{optimizers, rows};

/// Convert a row of 32-bit floats: its first `dim` are split into two planes, one number at a time.
fn in_planes(row: &[f32], dim: usize) -> Vec<f32> {
    let bits: Vec<u32> = row[..dim].iter().map(|weight| weight.to_bits()).collect();
    let halves: Vec<u32> =
        bits.iter().map(|bits| bits >> 16).chain(bits.iter().map(|bits| bits & 0xffff)).collect();
    let mut out: Vec<f32> = halves.chunks(2).map(|pair| f32::from_bits(pair[0] | pair[1] << 16)).collect();
    out.extend_from_slice(&row[dim..]);
    out
}

/// All rows, each split into planes.
fn all_in_planes(memory: &[f32], dim: usize, stride: usize) -> Vec<f32> {
    memory.chunks(stride).flat_map(|row| in_planes(row, dim)).collect()
}

/// Every bit pattern, not only finite numbers, survives splitting and joining.
#[test]
fn halves_are_the_upper_and_lower_bits() {
    let mut random = Random::new(3);
    for count in [0, 1, 7, 8, 15, 16, 17, 100] {
        let words: Vec<u32> = (0..count).map(|_| random.next() as u32).collect();
        let values: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
        for set in InstructionSet::available() {
            let (mut upper, mut lower) = (vec![7; count], vec![7; count]);
            split_with(set, &values, &mut upper, &mut lower);
            let expected: Vec<(u16, u16)> =
                words.iter().map(|word| ((word >> 16) as u16, *word as u16)).collect();
            assert_eq!(
                upper.iter().copied().zip(lower.iter().copied()).collect::<Vec<_>>(),
                expected,
                "{set}"
            );
            let mut out = vec![0.0; count];
            join_with(set, &upper, &lower, &mut out);
            assert_eq!(bits(&out), words, "{set}");
        }
    }
}

#[test]
fn an_update_is_bit_identical_to_whole_floats() {
    let mut random = Random::new(5);
    for count in [0, 1, 7, 8, 15, 16, 17, 100] {
        let weights = random.floats(count);
        // Gradients are bfloat16: floats whose lower 16 bits are 0.
        let gradient: Vec<u16> = random.floats(count).iter().map(|g| (g.to_bits() >> 16) as u16).collect();
        let expected: Vec<u32> = weights
            .iter()
            .zip(&gradient)
            .map(|(w, &g)| (-0.3_f32).mul_add(f32::from_bits(u32::from(g) << 16), *w).to_bits())
            .collect();
        for set in InstructionSet::available() {
            let (mut upper, mut lower, mut out) = (vec![0; count], vec![0; count], vec![0.0; count]);
            split_with(set, &weights, &mut upper, &mut lower);
            split_sgd_with(set, &mut upper, &mut lower, &gradient, 0.3);
            join_with(set, &upper, &lower, &mut out);
            assert_eq!(bits(&out), expected, "{set}");
        }
    }
}

proptest! {
    #[test]
    fn a_gather_reads_all_bits_and_a_pool_the_upper_halves(bags in bags(), dim in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let stride = dim + 1;
        let whole = random.floats(bags.unique * stride);
        let split = all_in_planes(&whole, dim, stride);
        let cut: Vec<f32> = whole.iter().map(|weight| f32::from_bits(weight.to_bits() & 0xffff_0000)).collect();
        let rows = |memory: &[f32]| -> Vec<RowPtr> {
            (0..bags.unique).map(|row| memory[row * stride..].as_ptr()).collect()
        };
        let Bags { unique, ref offsets, .. } = bags;
        for set in InstructionSet::available() {
            let gathered = [(&whole, Dtype::F32), (&split, Dtype::SplitBf16)].map(|(memory, dtype)| {
                let mut out = vec![7.0; unique * stride];
                // SAFETY: rows have `dim` weights of their type.
                unsafe { gather_with(set, &rows(memory), dtype, dim, &mut out, stride) };
                bits(&out)
            });
            prop_assert_eq!(&gathered[0], &gathered[1], "{} dim {}", set, dim);
            let pooled = [(&cut, Dtype::F32), (&split, Dtype::SplitBf16)].map(|(memory, dtype)| {
                let mut out = vec![7.0; (offsets.len() - 1) * stride];
                // SAFETY: rows have `dim` weights of their type, indices are below `unique`, and there is
                // room for every bag.
                unsafe { pool_with(set, &rows(memory), &bags.lookups(), dtype, dim, out.as_mut_ptr(), stride) };
                bits(&out)
            });
            prop_assert_eq!(&pooled[0], &pooled[1], "{} dim {}", set, dim);
        }
    }

    #[test]
    fn updates_are_bit_identical_to_32_bit_rows(
        optimizer in optimizers(), dim in dims(), count in 1_usize..20, seed: u64,
    ) {
        let mut random = Random::new(seed);
        // A canary after each row must survive.
        let stride = dim + optimizer.state_floats(dim) + 1;
        let mut whole = rows(&mut random, &optimizer, dim, count, stride);
        let before = all_in_planes(&whole, dim, stride);
        // Gradients of type bf16, as a bf16 model computes them; no -0, because sums start at 0.
        let gradients: Vec<f32> = random.floats(count * dim).iter()
            .map(|gradient| f32::from_bits(gradient.to_bits() & 0xffff_0000) + 0.0).collect();
        let offsets: Vec<i64> = (0..=count as i64).collect();
        let inverse: Vec<u32> = (0..count as u32).collect();
        let bags = Bags { unique: count, inverse, offsets, weights: None, pooling: rowmill_rows::Pooling::Sum };
        let mut order = LookupOrder::default();
        order.build(&bags.lookups(), count);
        let pointers = |memory: &mut Vec<f32>| -> Vec<*mut f32> {
            memory.chunks_mut(stride).map(<[f32]>::as_mut_ptr).collect()
        };
        let updates = [1, 2].map(|step| Update { lr: 0.02, step, rounding: None });
        for update in &updates {
            let rows = pointers(&mut whole);
            // SAFETY: rows are in `whole` and hold weights and state.
            unsafe { RowUpdater::new(&optimizer, Dtype::F32, dim).apply_many(&rows, &gradients, update) };
        }
        let expected = all_in_planes(&whole, dim, stride);
        for set in InstructionSet::available() {
            let updater = RowUpdater::with(set, &optimizer, Dtype::SplitBf16, dim);
            for in_one_go in [false, true] {
                let mut found = before.clone();
                for update in &updates {
                    let rows = pointers(&mut found);
                    // SAFETY: rows are in `found` and hold weights and state; every row has a gradient of
                    // `dim` floats.
                    unsafe {
                        if in_one_go {
                            updater.apply_lookups(&rows, &order, &bags.inverse, gradients.as_ptr(), dim, update);
                        } else {
                            updater.apply_many(&rows, &gradients, update);
                        }
                    }
                }
                prop_assert_eq!(bits(&found), bits(&expected), "{} {:?} dim {}", set, optimizer, dim);
            }
        }
    }
}

/// Steps of a hundredth of the gap between two bf16 weights: none is lost.
#[test]
fn small_steps_add_up_in_the_lower_halves() {
    const DIM: usize = 3;
    let mut row = in_planes(&[1.0; DIM], DIM);
    let updater = RowUpdater::new(&OptimizerSpec::Sgd { lr: 0.0 }, Dtype::SplitBf16, DIM);
    let update = Update { lr: 1.0, step: 1, rounding: None };
    for _ in 0..250 {
        // SAFETY: the row holds its weights.
        unsafe { updater.apply(row.as_mut_ptr(), &[-1.0 / 12_800.0; DIM], &update) };
    }
    let mut seen = [0.0; DIM];
    // SAFETY: the row has three weights, and the bag has one row.
    unsafe {
        let bags = Bags {
            unique: 1,
            inverse: vec![0],
            offsets: vec![0, 1],
            weights: None,
            pooling: rowmill_rows::Pooling::Sum,
        };
        let set = InstructionSet::best();
        pool_with(set, &[row.as_ptr()], &bags.lookups(), Dtype::SplitBf16, DIM, seen.as_mut_ptr(), DIM);
    }
    assert_eq!(seen, [1.0 + 2.0 / 128.0; DIM], "two and a half gaps, truncated");
}
