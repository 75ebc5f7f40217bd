//! Compares the interaction with a loop over samples and pairs.
//!
//! The kernels sum in another order than the loop, so the loop sums in double precision, and the kernels may
//! differ by their rounding. All instruction sets agree bit for bit.

use std::ops::Range;

use proptest::prelude::*;
use rowmill_kernels::{
    InstructionSet, Interaction, interact, interact_backward, interact_backward_with, interact_with, narrow,
    widen,
};

use crate::data::{Random, bits};

struct Case {
    shape: Interaction,
    dense: Vec<f32>,
    pooled: Vec<f32>,
    gradient: Vec<f32>,
}

impl Case {
    fn new(shape: Interaction, seed: u64) -> Self {
        let mut random = Random::new(seed);
        // All floats have a similar size, so that a sum in double precision bounds the rounding of every
        // order.
        let mut floats = |count: usize| -> Vec<f32> {
            (0..count).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect()
        };
        let (dense, pooled) = (floats(shape.dense_len()), floats(shape.pooled_len()));
        Self { shape, dense, pooled, gradient: floats(shape.out_len()) }
    }

    fn vector(&self, sample: usize, vector: usize) -> &[f32] {
        let Interaction { features, dim, .. } = self.shape;
        match vector {
            0 => &self.dense[sample * dim..][..dim],
            _ => &self.pooled[(sample * features + vector - 1) * dim..][..dim],
        }
    }

    fn naive(&self) -> Vec<f64> {
        let mut out = Vec::new();
        for sample in 0..self.shape.samples {
            out.extend(self.vector(sample, 0).iter().map(|&value| f64::from(value)));
            for row in 0..self.shape.vectors() {
                for column in 0..row {
                    let pair = self.vector(sample, row).iter().zip(self.vector(sample, column));
                    out.push(pair.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum());
                }
            }
        }
        out
    }

    /// Gradients of dense and pooled vectors.
    fn naive_backward(&self) -> (Vec<f64>, Vec<f64>) {
        let Interaction { samples, dim, .. } = self.shape;
        let (mut dense, mut pooled) = (Vec::new(), Vec::new());
        for sample in 0..samples {
            let gradient = &self.gradient[sample * self.shape.width()..][..self.shape.width()];
            let mut sums = vec![vec![0.0; dim]; self.shape.vectors()];
            sums[0] = gradient[..dim].iter().map(|&value| f64::from(value)).collect();
            let mut factors = gradient[dim..].iter();
            for row in 0..self.shape.vectors() {
                for column in 0..row {
                    let factor = f64::from(*factors.next().unwrap());
                    for (to, from) in [(row, column), (column, row)] {
                        let terms = self.vector(sample, from).iter().map(|&value| factor * f64::from(value));
                        sums[to].iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
                    }
                }
            }
            dense.extend_from_slice(&sums[0]);
            pooled.extend(sums[1..].iter().flatten());
        }
        (dense, pooled)
    }

    fn out(&self, set: InstructionSet) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.shape.out_len()];
        interact_with(set, self.shape, &self.dense, &self.pooled, &mut out);
        out
    }

    fn gradients(&self, set: InstructionSet) -> (Vec<f32>, Vec<f32>) {
        let mut dense = vec![f32::NAN; self.shape.dense_len()];
        let mut pooled = vec![f32::NAN; self.shape.pooled_len()];
        let Self { shape, gradient, .. } = self;
        interact_backward_with(set, *shape, &self.dense, &self.pooled, gradient, &mut dense, &mut pooled);
        (dense, pooled)
    }
}

/// Whether all floats equal the double-precision results, up to the rounding of `terms` additions.
fn close(got: &[f32], expected: &[f64], terms: usize) -> bool {
    let slack = (terms + 2) as f64 * f64::from(f32::EPSILON);
    got.len() == expected.len()
        && got.iter().zip(expected).all(|(&got, &expected)| (f64::from(got) - expected).abs() <= slack)
}

fn shapes() -> impl Strategy<Value = Interaction> {
    let dims = prop_oneof![0_usize..=40, prop::sample::select(vec![63, 64, 65, 80, 127, 128, 129, 200])];
    (0_usize..4, 0_usize..=30, dims).prop_map(|(samples, features, dim)| Interaction {
        samples,
        features,
        dim,
    })
}

proptest! {
    #[test]
    fn agrees_with_the_loop(shape in shapes(), seed: u64) {
        let case = Case::new(shape, seed);
        let (out, (dense, pooled)) = (case.naive(), case.naive_backward());
        let best = InstructionSet::best();
        for set in InstructionSet::available() {
            let got = case.out(set);
            prop_assert!(close(&got, &out, shape.dim), "{} {:?}", set, shape);
            prop_assert_eq!(bits(&got), bits(&case.out(best)), "{}", set);
            let got = case.gradients(set);
            prop_assert!(close(&got.0, &dense, shape.vectors()), "{} {:?}", set, shape);
            prop_assert!(close(&got.1, &pooled, shape.vectors()), "{} {:?}", set, shape);
            let of_best = case.gradients(best);
            prop_assert_eq!((bits(&got.0), bits(&got.1)), (bits(&of_best.0), bits(&of_best.1)), "{}", set);
        }
    }
}

proptest! {
    #[test]
    fn bfloat16_equals_rounded_results_of_widened_inputs(shape in shapes(), seed: u64) {
        let narrowed = |values: &[f32]| {
            let mut halves = vec![0; values.len()];
            narrow(values, &mut halves);
            halves
        };
        let widened = |halves: &[u16]| {
            let mut values = vec![0.0; halves.len()];
            widen(halves, &mut values);
            values
        };
        let case = Case::new(shape, seed);
        let [dense, pooled, gradient] = [&case.dense, &case.pooled, &case.gradient].map(|of| narrowed(of));
        let case = Case {
            shape, dense: widened(&dense), pooled: widened(&pooled), gradient: widened(&gradient),
        };
        for set in InstructionSet::available() {
            let mut out = vec![0; shape.out_len()];
            interact_with(set, shape, &dense, &pooled, &mut out);
            prop_assert_eq!(out, narrowed(&case.out(set)), "{} {:?}", set, shape);
            let (mut of_dense, mut of_pooled) = (vec![0; shape.dense_len()], vec![0; shape.pooled_len()]);
            interact_backward_with(set, shape, &dense, &pooled, &gradient, &mut of_dense, &mut of_pooled);
            let expected = case.gradients(set);
            prop_assert_eq!(of_dense, narrowed(&expected.0), "{} {:?}", set, shape);
            prop_assert_eq!(of_pooled, narrowed(&expected.1), "{} {:?}", set, shape);
        }
    }
}

#[test]
fn pairs_follow_the_dense_vector_row_by_row() {
    let shape = Interaction { samples: 1, features: 2, dim: 2 };
    let mut out = [0.0; 5];
    interact(shape, &[1.0, 0.0], &[2.0, 1.0, 0.0, 3.0], &mut out);
    assert_eq!(out, [1.0, 0.0, 2.0, 0.0, 3.0]);
    let (mut dense, mut pooled) = ([0.0; 2], [0.0; 4]);
    let gradient = [0.5, 0.25, 1.0, 10.0, 100.0];
    interact_backward(shape, &[1.0, 0.0], &[2.0, 1.0, 0.0, 3.0], &gradient, &mut dense, &mut pooled);
    assert_eq!(dense, [2.5, 31.25]);
    assert_eq!(pooled, [1.0, 300.0, 210.0, 100.0]);
}

/// A sample of aligned whole cache lines is read in place, any other one is copied.
#[test]
fn results_do_not_depend_on_the_alignment_of_inputs() {
    for (features, dim) in [(26, 64), (3, 16), (5, 80), (1, 20), (0, 32)] {
        let case = Case::new(Interaction { samples: 3, features, dim }, 5);
        for set in InstructionSet::available() {
            let results = [0, 1, 4].map(|floats_off| {
                let moved = |values: &[f32]| {
                    let mut memory = vec![f32::NAN; values.len() + 32];
                    let start = memory.as_ptr().align_offset(64) + floats_off;
                    memory[start..][..values.len()].copy_from_slice(values);
                    (memory, start)
                };
                let [(dense, dense_at), (pooled, pooled_at)] =
                    [&case.dense, &case.pooled].map(|of| moved(of));
                let dense = &dense[dense_at..][..case.dense.len()];
                let pooled = &pooled[pooled_at..][..case.pooled.len()];
                let mut out = vec![f32::NAN; case.shape.out_len()];
                interact_with(set, case.shape, dense, pooled, &mut out);
                let mut gradients = [dense, pooled].map(|of| vec![f32::NAN; of.len()]);
                let [of_dense, of_pooled] = &mut gradients;
                interact_backward_with(set, case.shape, dense, pooled, &case.gradient, of_dense, of_pooled);
                [&out, &gradients[0], &gradients[1]].map(|of| bits(of))
            });
            assert!(close(&case.out(set), &case.naive(), dim), "{set} {features} {dim}");
            assert_eq!(results[0], results[1], "{set} {features} {dim}");
            assert_eq!(results[0], results[2], "{set} {features} {dim}");
        }
    }
}

#[test]
fn parts_of_a_batch_are_bit_identical_to_the_whole() {
    let shape = Interaction { samples: 5, features: 3, dim: 20 };
    let case = Case::new(shape, 9);
    let whole = case.out(InstructionSet::best());
    let mut parts = Vec::new();
    for samples in [Range { start: 0, end: 2 }, Range { start: 2, end: 5 }] {
        let part = shape.part(&samples);
        let mut out = vec![0.0; part.out_len()];
        let dense = &case.dense[samples.start * 20..samples.end * 20];
        let pooled = &case.pooled[samples.start * 60..samples.end * 60];
        interact(part, dense, pooled, &mut out);
        parts.extend(out);
    }
    assert_eq!(bits(&parts), bits(&whole));
}

#[test]
#[should_panic(expected = "pooled has 3 floats, the shape needs 4")]
fn a_slice_of_the_wrong_length_is_refused() {
    let shape = Interaction { samples: 1, features: 2, dim: 2 };
    interact(shape, &[0.0; 2], &[0.0; 3], &mut [0.0; 5]);
}

#[test]
#[should_panic(expected = "overflow usize")]
fn a_shape_whose_lengths_wrap_around_is_refused() {
    // Modulo 2^64, these are the lengths of the slices.
    let shape = Interaction { samples: 32, features: 1 << 60, dim: 16 };
    interact(shape, &[0.0; 512], &[], &mut [0.0; 512]);
}
