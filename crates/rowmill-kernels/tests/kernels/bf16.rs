//! Compares bf16 rows with their definition, one number at a time: rounding by comparing distances, and rows
//! that are widened, processed as 32-bit floats and rounded back.

use proptest::prelude::*;
use rowmill_kernels::{
    InstructionSet, LookupOrder, Rounding, RoundingKey, RowInitializer, RowPtr, RowUpdater, Update,
    gather_with, narrow_with, pool_with, widen_with,
};
use rowmill_rows::{Dtype, Initializer, OptimizerSpec, RowLayout};

use crate::data::{Bags, Random, bags, bits, dims};
use crate::optimizers::{optimizers, rows};

/// The number that a bfloat16 represents.
fn value(weight: u16) -> f32 {
    f32::from_bits(u32::from(weight) << 16)
}

/// The bfloat16 nearest to a finite number; ties go to even.
fn nearest(number: f32) -> u16 {
    let toward_zero = (number.to_bits() >> 16) as u16;
    let distance = |weight: u16| (f64::from(value(weight)) - f64::from(number)).abs();
    let away = toward_zero + 1;
    if !value(away).is_finite() {
        // Here, infinity represents the next power of two.
        let gap = 2.0_f64.powi(127 - 7);
        let up = f64::from(value(toward_zero).abs()) + gap - f64::from(number.abs());
        return if distance(toward_zero) < up { toward_zero } else { away };
    }
    match distance(toward_zero).total_cmp(&distance(away)) {
        std::cmp::Ordering::Less => toward_zero,
        std::cmp::Ordering::Greater => away,
        std::cmp::Ordering::Equal => toward_zero + (toward_zero & 1),
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The random number below 2^16 that rounds a weight.
fn noise(seed: u64, category: u32, step: u64, id: u64, column: usize) -> u32 {
    let purpose = u64::from_be_bytes(*b"rounding");
    let hash = [seed, u64::from(category), purpose, step, id]
        .into_iter()
        .fold(0_u64, |state, number| mix((state ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15)));
    let (low, high) = (hash as u32, (hash >> 32) as u32);
    let mut bits = low.wrapping_add((column as u32).wrapping_mul(0x9e37_79b9));
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x7feb_352d) ^ high;
    bits = (bits ^ (bits >> 15)).wrapping_mul(0x846c_a68b);
    bits >> 16
}

/// Rounds away from zero if the random number is less than the dropped fraction, in 65,536ths of the gap.
fn at_random(number: f32, noise: u32) -> u16 {
    let cut = number.to_bits() & 0xffff;
    (number.to_bits() >> 16) as u16 + u16::from(cut + noise > 0xffff)
}

/// Any finite number, including numbers on or next to a tie.
fn numbers() -> impl Strategy<Value = f32> {
    let beside = (any::<u16>(), prop::sample::select(vec![0, 1, 0x7fff, 0x8000, 0x8001, 0xffff]));
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        beside.prop_map(|(upper, lower)| f32::from_bits(u32::from(upper) << 16 | lower)),
    ]
    .prop_filter("finite", |number| number.is_finite())
}

proptest! {
    #[test]
    fn narrowing_rounds_to_the_nearest_and_widening_is_exact(numbers in prop::collection::vec(numbers(), 0..70)) {
        let expected: Vec<u16> = numbers.iter().map(|&number| nearest(number)).collect();
        let widened: Vec<f32> = expected.iter().map(|&weight| value(weight)).collect();
        for set in InstructionSet::available() {
            let mut weights = vec![0; numbers.len()];
            narrow_with(set, &numbers, &mut weights);
            prop_assert_eq!(&weights, &expected, "{}", set);
            let mut out = vec![0.0; weights.len()];
            widen_with(set, &weights, &mut out);
            prop_assert_eq!(bits(&out), bits(&widened), "{}", set);
        }
    }
}

/// Stored weights may be infinite or NaN after a run diverged; copies of them must be equal.
#[test]
fn every_bf16_survives_widening_and_narrowing() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for set in InstructionSet::available() {
        let (mut out, mut back) = (vec![0.0; all.len()], vec![0; all.len()]);
        widen_with(set, &all, &mut out);
        narrow_with(set, &out, &mut back);
        assert_eq!(back, all, "{set}");
    }
}

/// Rows of bf16 weights and 32-bit state, and the same rows in 32 bits, each followed by a canary.
struct TwoKinds {
    layout: RowLayout,
    /// Floats from one row to the next.
    stride: usize,
    narrow: Vec<f32>,
    wide: Vec<f32>,
}

impl TwoKinds {
    fn new(random: &mut Random, optimizer: &OptimizerSpec, dim: usize, count: usize) -> Self {
        let layout = RowLayout::new(dim, Dtype::Bf16, optimizer, false);
        let stride = dim + layout.state_floats + 1;
        let mut wide = rows(random, optimizer, dim, count, stride);
        wide.chunks_mut(stride).for_each(|row| row[..dim].iter_mut().for_each(|w| *w = value(nearest(*w))));
        let mut both = Self { layout, stride, narrow: vec![random.float(); wide.len()], wide };
        for row in 0..count {
            both.narrow_row(row, |_, weight| nearest(weight));
        }
        both
    }

    fn address(&mut self, row: usize) -> *mut f32 {
        self.narrow[row * self.stride..].as_mut_ptr()
    }

    /// Set the bf16 row to the other row with each weight rounded.
    fn narrow_row(&mut self, row: usize, round: impl Fn(usize, f32) -> u16) {
        let RowLayout { dim, state_floats, .. } = self.layout;
        let wide = self.wide[row * self.stride..][..self.stride].to_vec();
        let narrow = &mut self.narrow[row * self.stride..][..self.stride];
        for (column, &weight) in wide[..dim].iter().enumerate() {
            let half = u32::from(round(column, weight));
            let pair = narrow[column / 2].to_bits();
            let pair = if column % 2 == 0 { pair & 0xffff_0000 | half } else { pair & 0xffff | half << 16 };
            narrow[column / 2] = f32::from_bits(pair);
        }
        narrow[self.layout.state_offset() / 4..][..state_floats]
            .copy_from_slice(&wide[dim..][..state_floats]);
    }
}

fn pointers(rows: &mut TwoKinds, order: &[usize]) -> Vec<*mut f32> {
    order.iter().map(|&row| rows.address(row)).collect()
}

proptest! {
    #[test]
    fn gathering_and_pooling_equal_those_of_widened_rows(bags in bags(), dim in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let mut rows = TwoKinds::new(&mut random, &OptimizerSpec::Sgd { lr: 0.0 }, dim, bags.unique);
        let stride = rows.stride;
        let wide: Vec<RowPtr> = (0..bags.unique).map(|row| rows.wide[row * stride..].as_ptr()).collect();
        let narrow: Vec<RowPtr> = (0..bags.unique).map(|row| rows.address(row).cast_const()).collect();
        let Bags { unique, ref offsets, .. } = bags;
        for set in InstructionSet::available() {
            let gathered = [(&wide, Dtype::F32), (&narrow, Dtype::Bf16)].map(|(rows, dtype)| {
                let mut out = vec![7.0; unique * (dim + 1)];
                // SAFETY: rows have `dim` weights of their type.
                unsafe { gather_with(set, rows, dtype, dim, &mut out, dim + 1) };
                bits(&out)
            });
            prop_assert_eq!(&gathered[0], &gathered[1], "{} dim {}", set, dim);
            let pooled = [(&wide, Dtype::F32), (&narrow, Dtype::Bf16)].map(|(rows, dtype)| {
                let mut out = vec![7.0; (offsets.len() - 1) * (dim + 1)];
                // SAFETY: rows have `dim` weights of their type, indices are below `unique`, and there is
                // room for every bag.
                unsafe { pool_with(set, rows, &bags.lookups(), dtype, dim, out.as_mut_ptr(), dim + 1) };
                bits(&out)
            });
            prop_assert_eq!(&pooled[0], &pooled[1], "{} dim {}", set, dim);
        }
    }

    #[test]
    fn updates_equal_those_of_widened_rows_with_stochastic_rounding(
        optimizer in optimizers(), dim in dims(), count in 1_usize..20, seed: u64, category: u32,
        number in 1_u64..9,
    ) {
        let mut random = Random::new(seed);
        let mut expected = TwoKinds::new(&mut random, &optimizer, dim, count);
        let before = expected.narrow.clone();
        let order: Vec<usize> = (0..count).rev().collect();
        let ids: Vec<u64> = order.iter().map(|_| random.next()).collect();
        // No -0: a sum that starts at 0 never gives -0.
        let gradients: Vec<f32> = random.floats(count * dim).iter().map(|gradient| gradient + 0.0).collect();
        let update = Update { lr: 0.02, step: number, rounding: None };
        for (i, &row) in order.iter().enumerate() {
            let wide = expected.wide[row * expected.stride..].as_mut_ptr();
            // SAFETY: the row holds weights and state.
            unsafe {
                let updater = RowUpdater::new(&optimizer, Dtype::F32, dim);
                updater.apply(wide, &gradients[i * dim..][..dim], &update);
            }
            let round = |column, weight| at_random(weight, noise(seed, category, number, ids[i], column));
            expected.narrow_row(row, round);
        }
        let key = RoundingKey::new(seed, category);
        let update = Update { rounding: Some(Rounding { key, ids: &ids }), ..update };
        let each: Vec<*const f32> = gradients.chunks(dim).map(<[f32]>::as_ptr).collect();
        // Every row is looked up by a bag of its own, so its gradient is the sum.
        let offsets: Vec<i64> = (0..=count as i64).collect();
        let inverse: Vec<u32> = (0..count as u32).collect();
        let bags = Bags { unique: count, inverse, offsets, weights: None, pooling: rowmill_rows::Pooling::Sum };
        let mut lookups = LookupOrder::default();
        lookups.build(&bags.lookups(), count);
        for set in InstructionSet::available() {
            let updater = RowUpdater::with(set, &optimizer, Dtype::Bf16, dim);
            for way in 0..3 {
                let mut found = TwoKinds { narrow: before.clone(), wide: Vec::new(), ..expected };
                let rows = pointers(&mut found, &order);
                // SAFETY: rows are in `found` and hold weights and state; every row has a gradient of `dim`
                // floats.
                unsafe {
                    match way {
                        0 => updater.apply_many(&rows, &gradients, &update),
                        1 => updater.apply_each(&rows, &each, &update),
                        _ => updater.apply_lookups(
                            &rows, &lookups, &bags.inverse, gradients.as_ptr(), dim, &update,
                        ),
                    }
                }
                prop_assert_eq!(
                    bits(&found.narrow), bits(&expected.narrow), "{} {:?} dim {}", set, optimizer, dim
                );
            }
        }
    }

    #[test]
    fn initial_values_are_rounded_to_the_nearest(dim in dims(), id: u64) {
        let initializer = Initializer::Normal { mean: 0.1, std: 0.3 };
        for set in InstructionSet::available() {
            let whole = RowInitializer::with(set, &initializer, 5, 6);
            let (mut exact, mut rounded) = (vec![0.0; dim], vec![0.0; dim]);
            whole.fill(id, &mut exact);
            whole.for_dtype(Dtype::Bf16).fill(id, &mut rounded);
            let expected: Vec<f32> = exact.iter().map(|&weight| value(nearest(weight))).collect();
            prop_assert_eq!(bits(&rounded), bits(&expected), "{}", set);
        }
    }
}

/// One bf16 row of ones after `steps` steps of SGD at rate 1, each with this gradient for every weight.
fn descend(gradient: f32, steps: u64, id: u64) -> Vec<f32> {
    const DIM: usize = 256;
    let mut row = vec![f32::from_bits(0x3f80_3f80); DIM / 2];
    let updater = RowUpdater::new(&OptimizerSpec::Sgd { lr: 0.0 }, Dtype::Bf16, DIM);
    for step in 1..=steps {
        let rounding = Some(Rounding { key: RoundingKey::new(3, 1), ids: &[id] });
        // SAFETY: the row holds its weights.
        unsafe {
            updater.apply(row.as_mut_ptr(), &[gradient; DIM], &Update { lr: 1.0, step, rounding });
        }
    }
    let halves = row.iter().flat_map(|pair| [pair.to_bits() as u16, (pair.to_bits() >> 16) as u16]);
    halves.map(value).collect()
}

/// Steps of a hundredth of the gap between two weights add up to their sum; rounding to nearest would lose
/// them. The variance is also that of independent steps.
#[test]
fn stochastic_rounding_is_unbiased() {
    // Above 1 the gap is 2^-7.
    let (gap, steps) = (1.0 / 128.0, 400);
    let step = gap / 100.0;
    assert_eq!(nearest(1.0 + step), nearest(1.0), "rounding to nearest loses the step");
    let rows: Vec<f32> = (0..64).flat_map(|id| descend(-step, steps, id)).collect();
    let count = rows.len() as f64;
    let mean = rows.iter().map(|&weight| f64::from(weight)).sum::<f64>() / count;
    let variance = rows.iter().map(|&weight| (f64::from(weight) - mean).powi(2)).sum::<f64>() / count;
    // Each step goes up by a gap with probability 0.01.
    let gap = f64::from(gap);
    let expected = gap * gap * f64::from(steps as u32) * 0.01 * 0.99;
    let error = (expected / count).sqrt();
    assert!((mean - (1.0 + 4.0 * gap)).abs() < 4.0 * error, "mean {mean}, off by {}", mean - 1.0 - 4.0 * gap);
    assert!((variance / expected - 1.0).abs() < 0.05, "variance {variance} instead of {expected}");
}

/// The noise of a weight is independent of its neighbours, of the next step and of the next id.
#[test]
fn noise_is_uniform_and_independent() {
    let numbers =
        |seed, category, step, id| (0..64).map(move |column| noise(seed, category, step, id, column));
    let mut buckets = [0_u32; 256];
    let mut same = [0_u32; 4];
    for id in 0..2000 {
        for (column, number) in numbers(1, 2, 3, id).enumerate() {
            buckets[number as usize >> 8] += 1;
            let others = [
                noise(1, 2, 3, id, column + 1),
                noise(1, 2, 4, id, column),
                noise(1, 2, 3, id + 1, column),
                noise(1, 3, 3, id, column),
            ];
            for (same, other) in same.iter_mut().zip(others) {
                *same += 16 - (number ^ other).count_ones();
            }
        }
    }
    let mean = 2000.0 * 64.0 / 256.0;
    let squares: f64 = buckets.iter().map(|&count| (f64::from(count) - mean).powi(2) / mean).sum();
    assert!((170.0..350.0).contains(&squares), "chi-square of 255 degrees: {squares}");
    let bits = 2000.0 * 64.0 * 16.0;
    for same in same {
        assert!((f64::from(same) / bits - 0.5).abs() < 4.0 * 0.5 / f64::sqrt(bits), "{same} of {bits} bits");
    }
}

/// A resumed run rounds as before, in any build.
#[test]
fn noise_never_changes() {
    let found: Vec<u32> = (0..6).map(|column| noise(7, 1, 1000, 0xfedc_ba98, column)).collect();
    assert_eq!(found, [24405, 32890, 44616, 29238, 19919, 2953]);
}

#[test]
#[should_panic(expected = "bf16 rows need a rounding")]
fn updating_bf16_rows_without_noise_panics() {
    let updater = RowUpdater::new(&OptimizerSpec::Sgd { lr: 0.0 }, Dtype::Bf16, 2);
    let mut row = [0.0];
    // SAFETY: the row has two weights.
    unsafe { updater.apply(row.as_mut_ptr(), &[1.0; 2], &Update { lr: 1.0, step: 1, rounding: None }) };
}
