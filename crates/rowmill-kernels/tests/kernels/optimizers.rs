//! Compares optimizers with their formulas, element by element, and with numbers printed by torch.

use proptest::prelude::*;
use rowmill_kernels::{InstructionSet, LookupOrder, RowUpdater, Update, accumulate_range};
use rowmill_rows::{Dtype, OptimizerSpec};

use crate::data::{Random, bags, bits, dims};

/// Step number `step`, for rows whose weights are not rounded.
fn step(lr: f32, step: u64) -> Update<'static> {
    Update { lr, step, rounding: None }
}

/// The mean of squares, added in the order that the kernels document.
fn mean_square(gradient: &[f32]) -> f32 {
    let mut partials = [0.0_f32; 16];
    for (i, g) in gradient.iter().enumerate() {
        partials[i % 16] += g * g;
    }
    let mut half = 8;
    while half > 0 {
        for i in 0..half {
            partials[i] += partials[i + half];
        }
        half /= 2;
    }
    partials[0] / gradient.len() as f32
}

/// The rate of Adam at a step, and the gains of its moments.
fn corrected(beta1: f32, beta2: f32, update: &Update<'_>) -> (f32, [f32; 2]) {
    let decimal = |value: f32| format!("{value}").parse::<f64>().unwrap();
    let (beta1, beta2) = (decimal(beta1), decimal(beta2));
    let power = |beta: f64| (0..update.step).fold(1.0, |product, _| product * beta);
    let rate = decimal(update.lr) * (1.0 - power(beta2)).sqrt() / (1.0 - power(beta1));
    (rate as f32, [1.0 - beta1, 1.0 - beta2].map(|gain| gain as f32))
}

/// One step of one row as in the papers, rounded where the kernels document it.
fn naive(optimizer: &OptimizerSpec, row: &mut [f32], gradient: &[f32], update: &Update<'_>) {
    let dim = gradient.len();
    let (weights, state) = row.split_at_mut(dim);
    match *optimizer {
        OptimizerSpec::Sgd { .. } => {
            for (w, g) in weights.iter_mut().zip(gradient) {
                *w = (-update.lr).mul_add(*g, *w);
            }
        }
        OptimizerSpec::MomentumSgd { momentum, nesterov, .. } => {
            for ((w, v), g) in weights.iter_mut().zip(state).zip(gradient) {
                *v = momentum * *v + g;
                let step = if nesterov { momentum.mul_add(*v, *g) } else { *v };
                *w = (-update.lr).mul_add(step, *w);
            }
        }
        OptimizerSpec::Adagrad { eps, .. } => {
            for ((w, s), g) in weights.iter_mut().zip(state).zip(gradient) {
                *s += g * g;
                *w = (-update.lr).mul_add(g / (s.sqrt() + eps), *w);
            }
        }
        OptimizerSpec::RowwiseAdagrad { eps, .. } => {
            state[0] += mean_square(gradient);
            let rate = update.lr / (state[0].sqrt() + eps);
            for (w, g) in weights.iter_mut().zip(gradient) {
                *w = (-rate).mul_add(*g, *w);
            }
        }
        OptimizerSpec::Adam { beta1, beta2, eps, .. } => {
            let (rate, gains) = corrected(beta1, beta2, update);
            let (first, second) = state.split_at_mut(dim);
            for i in 0..dim {
                let g = gradient[i];
                first[i] += (g - first[i]) * gains[0];
                second[i] += (g * g - second[i]) * gains[1];
                weights[i] -= rate * (first[i] / (second[i].sqrt() + eps));
            }
        }
        OptimizerSpec::RowwiseAdam { beta1, beta2, eps, .. } => {
            let (rate, gains) = corrected(beta1, beta2, update);
            let (first, second) = state.split_at_mut(dim);
            second[0] += (mean_square(gradient) - second[0]) * gains[1];
            let factor = rate / (second[0].sqrt() + eps);
            for ((w, m), g) in weights.iter_mut().zip(first).zip(gradient) {
                *m += (g - *m) * gains[0];
                *w = (-factor).mul_add(*m, *w);
            }
        }
        OptimizerSpec::Ftrl { beta, l1, l2, .. } => {
            let (z, n) = state.split_at_mut(dim);
            for i in 0..dim {
                let (g, before) = (gradient[i], n[i]);
                n[i] += g * g;
                z[i] = update.lr.mul_add(g, z[i]);
                z[i] = (before.sqrt() - n[i].sqrt()).mul_add(weights[i], z[i]);
                let threshold = update.lr * l1;
                let scale = n[i].sqrt() + update.lr.mul_add(l2, beta);
                weights[i] =
                    if z[i].abs() <= threshold { 0.0 } else { -(z[i] - threshold.copysign(z[i])) / scale };
            }
        }
    }
}

/// Rows of random weights and state, `stride` floats apart. Accumulators of squares are not negative.
pub(crate) fn rows(
    random: &mut Random,
    optimizer: &OptimizerSpec,
    dim: usize,
    count: usize,
    stride: usize,
) -> Vec<f32> {
    let signed = match optimizer {
        OptimizerSpec::MomentumSgd { .. }
        | OptimizerSpec::Adam { .. }
        | OptimizerSpec::RowwiseAdam { .. }
        | OptimizerSpec::Ftrl { .. } => 2 * dim,
        _ => dim,
    };
    let mut memory = random.floats(count * stride);
    for row in memory.chunks_mut(stride) {
        row[signed..].iter_mut().for_each(|sum| *sum = sum.abs());
    }
    memory
}

pub(crate) fn optimizers() -> impl Strategy<Value = OptimizerSpec> {
    prop::sample::select(vec![
        OptimizerSpec::Sgd { lr: 9.0 },
        OptimizerSpec::MomentumSgd { lr: 9.0, momentum: 0.9, nesterov: false },
        OptimizerSpec::MomentumSgd { lr: 9.0, momentum: 0.9, nesterov: true },
        OptimizerSpec::Adagrad { lr: 9.0, eps: 1e-10, initial_accumulator: 0.0 },
        OptimizerSpec::RowwiseAdagrad { lr: 9.0, eps: 1e-8, initial_accumulator: 0.0 },
        OptimizerSpec::Adam { lr: 9.0, beta1: 0.9, beta2: 0.999, eps: 1e-8 },
        OptimizerSpec::RowwiseAdam { lr: 9.0, beta1: 0.9, beta2: 0.999, eps: 1e-8 },
        OptimizerSpec::Ftrl { lr: 9.0, beta: 1.0, l1: 0.0, l2: 0.0, initial_accumulator: 0.0 },
        OptimizerSpec::Ftrl { lr: 9.0, beta: 0.1, l1: 10.0, l2: 0.5, initial_accumulator: 0.0 },
    ])
}

proptest! {
    #[test]
    fn agree_with_the_formulas(optimizer in optimizers(), dim in dims(), count in 1_usize..40, seed: u64) {
        let mut random = Random::new(seed);
        let floats = dim + optimizer.state_floats(dim);
        // A canary after each row must survive.
        let stride = floats + random.below(3) + 1;
        let memory = rows(&mut random, &optimizer, dim, count, stride);
        // Rows in any order, one of them twice: the second update sees the result of the first.
        let mut order: Vec<usize> = (0..count).map(|_| random.below(count)).collect();
        order.push(order[0]);
        let gradients = random.floats(order.len() * dim);
        // Few steps: the formula above multiplies powers out, the kernel squares repeatedly.
        let update = Update { step: 1 + random.below(2) as u64, ..step(0.02, 1) };
        let mut expected = memory.clone();
        for (i, &row) in order.iter().enumerate() {
            naive(&optimizer, &mut expected[row * stride..][..floats], &gradients[i * dim..][..dim], &update);
        }
        for set in InstructionSet::available() {
            let mut memory = memory.clone();
            let start = memory.as_mut_ptr();
            let rows: Vec<*mut f32> = order.iter().map(|&row| start.wrapping_add(row * stride)).collect();
            // SAFETY: rows are in `memory` and hold weights and state.
            unsafe { RowUpdater::with(set, &optimizer, Dtype::F32, dim).apply_many(&rows, &gradients, &update) };
            prop_assert_eq!(bits(&memory), bits(&expected), "{} {:?} dim {}", set, optimizer, dim);
        }
    }
}

proptest! {
    #[test]
    fn fused_accumulation_and_update_are_bit_identical(
        optimizer in optimizers(), bags in bags(), dim in dims(), first in 0.0..1.0, seed: u64,
    ) {
        let mut random = Random::new(seed);
        let floats = dim + optimizer.state_floats(dim);
        let stride = dim + random.below(3);
        let memory = rows(&mut random, &optimizer, dim, bags.unique, floats);
        let gradients = random.floats((bags.offsets.len() - 1) * stride);
        let mut order = LookupOrder::default();
        order.build(&bags.lookups(), bags.unique);
        let unique: Vec<u32> = ((first * bags.unique as f64) as u32..bags.unique as u32).rev().collect();
        let mut sums = vec![0.0; bags.unique * dim];
        let update = step(0.02, 3);
        let pointers = |memory: &mut Vec<f32>| -> Vec<*mut f32> {
            unique.iter().map(|&row| memory[row as usize * floats..].as_mut_ptr()).collect()
        };
        let mut expected = memory.clone();
        // SAFETY: rows are in the vectors, and `gradients` has `dim` floats per bag.
        unsafe {
            accumulate_range(&order, 0..bags.unique, gradients.as_ptr(), stride, dim, &mut sums);
            let each: Vec<*const f32> = unique.iter().map(|&row| sums[row as usize * dim..].as_ptr()).collect();
            RowUpdater::new(&optimizer, Dtype::F32, dim).apply_each(&pointers(&mut expected), &each, &update);
        }
        for set in InstructionSet::available() {
            let mut memory = memory.clone();
            let (rows, updater) = (pointers(&mut memory), RowUpdater::with(set, &optimizer, Dtype::F32, dim));
            // SAFETY: as above: rows are in the vectors, with `dim` floats per bag.
            unsafe {
                updater.apply_lookups(&rows, &order, &unique, gradients.as_ptr(), stride, &update);
            }
            prop_assert_eq!(bits(&memory), bits(&expected), "{} {:?} dim {}", set, optimizer, dim);
        }
    }
}

const ROW: [f32; 5] = [0.5, -1.25, 0.3, 2.0, -0.7];
const GRADIENTS: [[f32; 5]; 3] =
    [[0.1, -0.2, 0.3, 1e-3, 5.0], [0.4, 0.2, -0.1, 2e-3, -3.0], [-0.3, 0.05, 0.7, 0.0, 1.0]];

/// Weights and state of one row after all gradients at a rate of 0.02.
fn three_steps(optimizer: &OptimizerSpec) -> Vec<f32> {
    let mut row = ROW.to_vec();
    row.resize(5 + optimizer.state_floats(5), 0.0);
    optimizer.initialize_state(&mut row[5..]);
    let updater = RowUpdater::new(optimizer, Dtype::F32, 5);
    for (gradient, number) in GRADIENTS.iter().zip(1..) {
        // SAFETY: the row holds weights and state.
        unsafe { updater.apply(row.as_mut_ptr(), gradient, &step(0.02, number)) };
    }
    row
}

/// Bits of one row after three gradients, as printed by torch 2.15. Gradients are sparse except for momentum.
#[test]
fn three_steps_of_torch() {
    let sgd = OptimizerSpec::Sgd { lr: 0.0 };
    let momentum = |nesterov| OptimizerSpec::MomentumSgd { lr: 0.0, momentum: 0.9, nesterov };
    let adagrad = OptimizerSpec::Adagrad { lr: 0.0, eps: 1e-10, initial_accumulator: 0.1 };
    let adam = OptimizerSpec::Adam { lr: 0.0, beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    let cases: [(OptimizerSpec, &[u32]); 5] = [
        // torch.optim.SGD([p], lr=0.02)
        (sgd, &[0x3efd_f3b7, 0xbfa0_20c5, 0x3e90_624e, 0x3fff_fe08, 0xbf42_8f5c]),
        // torch.optim.SGD([p], lr=0.02, momentum=0.9): weights, momentum_buffer; dense, as all rows are touched
        (
            momentum(false),
            &[
                0x3ef8_83bb,
                0xbf9f_b69a,
                0x3e8c_0d6f,
                0x3fff_fbbb,
                0xbf60_8312,
                0x3e10_624c,
                0x3d8b_4397,
                0x3f5a_5e35,
                0x3b2b_0c89,
                0x4016_6666,
            ],
        ),
        // With nesterov=True.
        (
            momentum(true),
            &[
                0x3ef7_3710,
                0xbf9f_deb5,
                0x3e84_30f4,
                0x3fff_fa32,
                0xbf6b_573e,
                0x3e10_624c,
                0x3d8b_4397,
                0x3f5a_5e35,
                0x3b2b_0c89,
                0x4016_6666,
            ],
        ),
        // torch.optim.Adagrad([p], lr=0.02, eps=1e-10, initial_accumulator_value=0.1): weights, sum
        (
            adagrad,
            &[
                0x3efa_2657,
                0xbfa0_2357,
                0x3e8c_367c,
                0x3fff_f9c8,
                0xbf36_8b2b,
                0x3eb8_51ec,
                0x3e3a_e148,
                0x3f30_a3d7,
                0x3dcc_cf6c,
                0x420c_6666,
            ],
        ),
        // torch.optim.SparseAdam([p], lr=0.02): weights, exp_avg, exp_avg_sq
        (
            adam,
            &[
                0x3eea_e500,
                0xbf9d_f652,
                0x3e83_ff0b,
                0x3ff9_0f82,
                0xbf3a_99cc,
                0x3c67_03b0,
                0x3bde_d286,
                0x3dae_b1c4,
                0x3988_d6d4,
                0x3e70_a3d8,
                0x3988_3874,
                0x38ac_c374,
                0x3a1a_9d7d,
                0x31ab_97b4,
                0x3d0f_1e52,
            ],
        ),
    ];
    for (optimizer, expected) in cases {
        let row = three_steps(&optimizer);
        assert_eq!(bits(&row), expected, "{optimizer:?}: {row:?}");
    }
}

/// One row as printed by `keras.optimizers.Ftrl` of Keras 3.15: weights, z, n. Keras stores z itself, counts
/// l2 twice and rounds in another order.
#[test]
fn three_steps_of_keras() {
    let ftrl = |beta, l1, l2| OptimizerSpec::Ftrl { lr: 0.0, beta, l1, l2, initial_accumulator: 0.1 };
    let n = [0.36, 0.1825, 0.69, 0.100_005, 35.1];
    let cases = [
        // Ftrl(0.02, initial_accumulator_value=0.1, beta=1.0)
        (
            ftrl(1.0, 0.0, 0.0),
            [0.002_778_907, -0.053_301_15, 0.014_556_84, -4.318_454e-5, -0.557_450_1],
            [-0.222_312_54, 3.803_570_7, -1.332_433, 0.002_842_052, 193.003_86],
        ),
        // ... beta=0.5, l1_regularization_strength=0.3, l2_regularization_strength=0.25)
        (
            ftrl(0.5, 0.3, 0.5),
            [0.0, -0.075_948_88, 0.016_912_576, 0.0, -0.605_912_3],
            [-0.185_867_82, 3.858_965_2, -1.433_702_7, 0.002_842_047_7, 195.237_9],
        ),
    ];
    for (optimizer, weights, z) in cases {
        let row = three_steps(&optimizer);
        let scaled = z.map(|z| 0.02 * z);
        for (found, expected) in row.iter().zip([weights, scaled, n].concat()) {
            assert!((found - expected).abs() <= 1e-6 * expected.abs().max(0.1), "{optimizer:?}: {row:?}");
        }
    }
}

#[test]
fn ftrl_keeps_weights_when_the_learning_rate_changes() {
    let ftrl = OptimizerSpec::Ftrl { lr: 0.0, beta: 1.0, l1: 0.0, l2: 0.0, initial_accumulator: 0.0 };
    let (row, updater) = (three_steps(&ftrl), RowUpdater::new(&ftrl, Dtype::F32, 5));
    for (gradient, lr) in [([0.0; 5], 0.002), ([0.0; 5], 0.2), ([0.0; 5], 0.0), (GRADIENTS[0], 0.0)] {
        let mut changed = row.clone();
        // SAFETY: the row holds weights and state.
        unsafe { updater.apply(changed.as_mut_ptr(), &gradient, &step(lr, 4)) };
        for (after, before) in changed.iter().zip(&row).take(5) {
            assert!((after - before).abs() <= 1e-6, "at rate {lr}: {changed:?} after {row:?}");
        }
    }
}

#[test]
fn ftrl_nearly_forgets_the_initial_weight() {
    let ftrl = OptimizerSpec::Ftrl { lr: 0.0, beta: 1.0, l1: 0.0, l2: 0.0, initial_accumulator: 0.0 };
    let mut row = [2.0, 0.0, 0.0];
    // SAFETY: the row holds weights and state.
    unsafe { RowUpdater::new(&ftrl, Dtype::F32, 1).apply(row.as_mut_ptr(), &[0.25], &step(0.5, 1)) };
    // From the 2, the growth of the root over the whole root is left: 0.25 / 1.25. The step is 0.5 * 0.25 /
    // 1.25.
    assert!((row[0] - (0.4 - 0.1)).abs() < 1e-6, "{row:?}");
}
