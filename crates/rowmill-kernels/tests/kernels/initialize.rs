//! Initial values: statistics, bounds, independence, and bits that never change.

use rowmill_kernels::{InstructionSet, RowInitializer, initialize};
use rowmill_rows::Initializer;

const UNIFORM: Initializer = Initializer::Uniform { low: -0.5, high: 1.5 };
const NORMAL: Initializer = Initializer::Normal { mean: 1.0, std: 2.0 };
const TRUNCATED: Initializer = Initializer::TruncatedNormal { mean: 0.0, std: 1.0, low: -2.0, high: 2.0 };

/// Weights of `rows` consecutive ids, row after row.
fn sample(initializer: &Initializer, rows: u64, dim: usize) -> Vec<f32> {
    let table = RowInitializer::new(initializer, 7, 3);
    let mut weights = vec![0.0; rows as usize * dim];
    for (id, row) in (0..rows).zip(weights.chunks_mut(dim)) {
        table.fill(id, row);
    }
    weights
}

/// Mean, standard deviation, and excess kurtosis.
fn moments(values: &[f32]) -> (f64, f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let moment = |power| values.iter().map(|&x| (f64::from(x) - mean).powi(power)).sum::<f64>() / count;
    (mean, moment(2).sqrt(), moment(4) / moment(2).powi(2) - 3.0)
}

fn correlation(pairs: impl Iterator<Item = (f32, f32)> + Clone) -> f64 {
    let (a, b): (Vec<f32>, Vec<f32>) = pairs.unzip();
    let (a_mean, a_std, _) = moments(&a);
    let (b_mean, b_std, _) = moments(&b);
    let product = |(&x, &y): (&f32, &f32)| (f64::from(x) - a_mean) * (f64::from(y) - b_mean);
    a.iter().zip(&b).map(product).sum::<f64>() / (a.len() as f64 * a_std * b_std)
}

#[test]
fn moments_match_the_distribution() {
    // A million draws: standard errors are 1e-3 of the deviation, and tolerances are five times that.
    let truncated_std = 0.879_626;
    for (initializer, mean, std, kurtosis) in [
        (UNIFORM, 0.5, 2.0 / 12.0_f64.sqrt(), -1.2),
        (NORMAL, 1.0, 2.0, 0.0),
        (TRUNCATED, 0.0, truncated_std, -0.635),
    ] {
        let found = moments(&sample(&initializer, 62_500, 16));
        assert!((found.0 - mean).abs() < 5e-3 * std, "{initializer:?} mean {}", found.0);
        assert!((found.1 - std).abs() < 4e-3 * std, "{initializer:?} std {}", found.1);
        assert!((found.2 - kurtosis).abs() < 0.03, "{initializer:?} kurtosis {}", found.2);
    }
}

#[test]
fn normal_quantiles_match() {
    let values = sample(&NORMAL, 62_500, 16);
    for (sigmas, below) in [(-3.0, 0.001_35), (-1.0, 0.158_66), (0.0, 0.5), (0.5, 0.691_46), (2.0, 0.977_25)]
    {
        let share = values.iter().filter(|&&x| (f64::from(x) - 1.0) / 2.0 < sigmas).count() as f64 / 1e6;
        let error: f64 = (below * (1.0 - below) / 1e6_f64).sqrt();
        assert!((share - below).abs() < 5.0 * error, "below {sigmas} sigmas: {share}, not {below}");
    }
}

#[test]
fn values_stay_within_bounds_and_come_close_to_them() {
    let uniform = sample(&UNIFORM, 10_000, 100);
    assert!(uniform.iter().all(|x| (-0.5..1.5).contains(x)));
    assert!(uniform.iter().any(|&x| x < -0.4999) && uniform.iter().any(|&x| x > 1.4999));
    let truncated = sample(&TRUNCATED, 10_000, 100);
    assert!(truncated.iter().all(|x| (-2.0..=2.0).contains(x)));
    assert!(truncated.iter().any(|&x| x < -1.999) && truncated.iter().any(|&x| x > 1.999));
}

#[test]
fn a_uniform_never_rounds_up_to_its_upper_bound() {
    // Between these neighbours, most draws would round to the upper one.
    let low = 1.0_f32;
    let narrow = Initializer::Uniform { low, high: low.next_up() };
    assert!(sample(&narrow, 1000, 16).iter().all(|&x| x == low));
    let wide = Initializer::Uniform { low: f32::MIN, high: f32::MAX };
    assert!(sample(&wide, 1000, 16).iter().all(|x| x.is_finite()));
}

#[test]
fn far_tails_stay_inside_their_bounds() {
    for (low, high) in [(5.0, 6.0), (-6.0, -5.0), (5.0, 1e9), (60.0, 61.0), (-1e30, 1e30), (-61.0, -60.0)] {
        let tail = Initializer::TruncatedNormal { mean: 0.0, std: 1.0, low, high };
        let values = sample(&tail, 1000, 16);
        assert!(values.iter().all(|x| (low..=high).contains(x)), "{low}..{high}: {:?}", &values[..4]);
    }
    // E[x | x > 5] = 5.18650 for a standard normal.
    let tail = Initializer::TruncatedNormal { mean: 0.0, std: 1.0, low: 5.0, high: 100.0 };
    let (mean, ..) = moments(&sample(&tail, 10_000, 16));
    assert!((mean - 5.186_5).abs() < 0.01, "{mean}");
}

#[test]
fn adjacent_values_are_uncorrelated() {
    const DIM: usize = 16;
    for initializer in [UNIFORM, NORMAL] {
        let values = sample(&initializer, 62_500, DIM);
        // Consecutive ids, adjacent elements, and ids a power of two apart.
        for distance in [1, 2, DIM, 2 * DIM, 1024 * DIM, 32_768 * DIM] {
            let pairs = values.iter().copied().zip(values[distance..].iter().copied());
            let found = correlation(pairs);
            assert!(found.abs() < 7e-3, "{initializer:?} distance {distance}: {found}");
        }
    }
}

#[test]
fn values_depend_on_seed_category_id_and_element() {
    let draw = |seed, category, id| {
        let mut weights = [0.0; 4];
        initialize(&UNIFORM, seed, category, id, &mut weights);
        weights
    };
    let keys =
        [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, u64::MAX), (u64::MAX, 0, 0), (0, u32::MAX, 0)];
    for (i, a) in keys.iter().enumerate() {
        let row = draw(a.0, a.1, a.2);
        assert!(row.iter().all(|x| row.iter().filter(|y| x == *y).count() == 1));
        for b in &keys[i + 1..] {
            assert_ne!(row, draw(b.0, b.1, b.2), "{a:?} {b:?}");
        }
    }
}

#[test]
fn a_wider_row_begins_like_a_narrow_one_under_every_instruction_set() {
    for initializer in [UNIFORM, NORMAL, TRUNCATED, Initializer::Constant { value: 3.0 }, Initializer::Zeros]
    {
        let mut reference = [0.0; 300];
        initialize(&initializer, 5, 6, 7, &mut reference);
        for set in InstructionSet::available() {
            let table = RowInitializer::with(set, &initializer, 5, 6);
            for dim in [0, 1, 2, 3, 7, 16, 31, 32, 33, 64, 100, 300] {
                let mut weights = vec![f32::NAN; dim];
                table.fill(7, &mut weights);
                assert_eq!(weights, reference[..dim], "{set} {initializer:?} dim {dim}");
            }
        }
    }
}

/// Stored data depends on these bits. The expected bits come from a Python program that follows the module's
/// description and takes the quantile from `statistics.NormalDist`.
#[test]
fn the_values_of_a_seed_never_change() {
    let uniform = Initializer::Uniform { low: -0.1, high: 0.1 };
    let normal = Initializer::Normal { mean: 0.0, std: 0.01 };
    let first = (1, 2, 3);
    let last = (u64::MAX, u32::MAX, u64::MAX);
    for (initializer, (seed, category, id), expected) in [
        (uniform, first, [0x3cbe_c368, 0xbdaf_7251, 0x3d86_e40b, 0x3d94_d217, 0xbdb8_df99, 0xbce9_fafa]),
        (normal, first, [0x3b42_118a, 0xbc6f_c821, 0x3c1b_e490, 0x3c33_78df, 0xbc87_d4d4, 0xbb6f_d95d]),
        (uniform, last, [0xbd95_878f, 0x3d4b_f01e, 0x3d2f_bec1, 0x3d85_07f1, 0x3d04_f0f1, 0xbca5_1048]),
        (normal, last, [0xbc34_c5d4, 0x3bdb_eed2, 0x3bb9_b02e, 0x3c18_fc32, 0x3b89_32f7, 0xbb27_4cf6]),
    ] {
        let mut weights = [0.0_f32; 6];
        initialize(&initializer, seed, category, id, &mut weights);
        assert_eq!(weights.map(f32::to_bits), expected, "{initializer:?}: {weights:?}");
    }
}
