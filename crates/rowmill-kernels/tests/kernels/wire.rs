//! Compares messages of rows, and bags pooled from them, with loops over every row and float.

use proptest::prelude::*;
use rowmill_kernels::{
    Message, RecoveredFeature, Recovery, SKIP, narrow, pack, recover, recover_backward, unpack_add, widen,
};
use rowmill_rows::Pooling;

use crate::data::{Random, bits};

/// Counts by rank and category, dims, and distinct rows by category.
#[derive(Clone, Debug)]
struct Shape {
    counts: Vec<u32>,
    dims: Vec<u32>,
    unique: Vec<u32>,
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1_usize..4, 1_usize..5).prop_flat_map(|(ranks, categories)| {
        (
            prop::collection::vec(0_u32..9, ranks * categories),
            prop::collection::vec(prop::sample::select(vec![1_u32, 3, 8, 17, 32, 70]), categories),
            prop::collection::vec(1_u32..6, categories),
        )
            .prop_map(|(counts, dims, unique)| Shape { counts, dims, unique })
    })
}

impl Shape {
    fn message(&self) -> Message<'_> {
        Message { counts: &self.counts, dims: &self.dims }
    }

    /// The category of every row of the message.
    fn categories(&self) -> Vec<usize> {
        let blocks = self.counts.iter().enumerate();
        blocks.flat_map(|(block, &count)| vec![block % self.dims.len(); count as usize]).collect()
    }

    /// Offset of the distinct row `unique`, numbered through all categories.
    fn row_start(&self, unique: usize) -> usize {
        let dims = self.dims.iter().zip(&self.unique);
        let of_each: Vec<usize> =
            dims.flat_map(|(&dim, &count)| vec![dim as usize; count as usize]).collect();
        of_each[..unique].iter().sum()
    }

    fn row_floats(&self) -> usize {
        self.dims.iter().zip(&self.unique).map(|(&dim, &count)| (dim * count) as usize).sum()
    }

    /// A distinct row for each row of the message.
    fn inverse(&self, random: &mut Random) -> Vec<u32> {
        let each = self.categories().into_iter();
        each.map(|category| {
            let first: u32 = self.unique[..category].iter().sum();
            first + random.below(self.unique[category] as usize) as u32
        })
        .collect()
    }
}

proptest! {
    #[test]
    fn packing_and_adding_rows_equal_the_loop(shape in shapes(), seed: u64) {
        let mut random = Random::new(seed);
        let (rows, inverse) = (random.floats(shape.row_floats()), shape.inverse(&mut random));
        let mut expected = Vec::new();
        for (&unique, category) in inverse.iter().zip(shape.categories()) {
            let start = shape.row_start(unique as usize);
            expected.extend(&rows[start..start + shape.dims[category] as usize]);
        }
        prop_assert_eq!(shape.message().floats(), Some(expected.len()));
        let mut wire = vec![7.0; expected.len()];
        pack(shape.message(), &rows, &shape.unique, &inverse, &mut wire);
        prop_assert_eq!(bits(&wire), bits(&expected));

        let (mut sums, mut wanted) = (rows.clone(), rows);
        let mut values = wire.iter();
        for (&unique, category) in inverse.iter().zip(shape.categories()) {
            let start = shape.row_start(unique as usize);
            for sum in &mut wanted[start..start + shape.dims[category] as usize] {
                *sum += values.next().unwrap();
            }
        }
        unpack_add(shape.message(), &wire, &shape.unique, &inverse, &mut sums);
        prop_assert_eq!(bits(&sums), bits(&wanted));
    }

    #[test]
    fn pooling_bags_and_returning_gradients_equal_the_loop(
        shape in shapes(),
        bags in 0_usize..5,
        features in 1_usize..4,
        weighted: bool,
        seed: u64,
    ) {
        let mut random = Random::new(seed);
        let categories = shape.categories();
        let starts = shape.message().starts();
        let (mut combined, mut offsets, mut recovered, mut stride) = (Vec::new(), vec![0], Vec::new(), 1);
        for _ in 0..features {
            let category = random.below(shape.dims.len());
            let here: Vec<u32> = (0..categories.len() as u32)
                .filter(|&row| categories[row as usize] == category)
                .chain([SKIP])
                .collect();
            for _ in 0..bags {
                combined.extend((0..random.below(4)).map(|_| here[random.below(here.len())]));
                offsets.push(combined.len() as i64);
            }
            let dim = shape.dims[category] as usize;
            let pooling = if weighted || random.below(2) == 0 { Pooling::Sum } else { Pooling::Mean };
            recovered.push(RecoveredFeature { dim, column: stride, pooling });
            stride += dim + 1;
        }
        let weights = random.floats(combined.len());
        let recovery = Recovery {
            message: shape.message(),
            combined: &combined,
            offsets: &offsets,
            weights: weighted.then_some(&weights[..]),
            features: &recovered,
            bags,
            stride,
        };
        let wire = random.floats(shape.message().floats().unwrap());
        let gradients = random.floats(bags * stride);
        let mut wanted = vec![5.0; bags * stride];
        let mut wanted_back = vec![0.0_f32; wire.len()];
        for (number, feature) in recovered.iter().enumerate() {
            for bag in 0..bags {
                let ends = &offsets[number * bags + bag..][..2];
                let lookups: Vec<usize> = (ends[0] as usize..ends[1] as usize)
                    .filter(|&lookup| combined[lookup] != SKIP)
                    .collect();
                let count = if feature.pooling == Pooling::Mean { lookups.len().max(1) } else { 1 };
                for column in 0..feature.dim {
                    let at = bag * stride + feature.column + column;
                    let mut sum = 0.0_f32;
                    for &lookup in &lookups {
                        let place = starts[combined[lookup] as usize] + column;
                        let share = 1.0 / count as f32;
                        if weighted {
                            sum = weights[lookup].mul_add(wire[place], sum);
                            wanted_back[place] += weights[lookup] * gradients[at];
                        } else {
                            sum += wire[place];
                            wanted_back[place] += share * gradients[at];
                        }
                    }
                    wanted[at] = sum / count as f32;
                }
            }
        }
        let mut out = vec![5.0; bags * stride];
        recover(&recovery, &wire, &mut out);
        prop_assert_eq!(bits(&out), bits(&wanted));
        let mut back = vec![3.0; wire.len()];
        recover_backward(&recovery, &gradients, &mut back);
        prop_assert_eq!(bits(&back), bits(&wanted_back));
        // As bfloat16: the same, rounded; and gradients of bfloat16 give what the widened gradients give.
        let mut halves = vec![0; gradients.len()];
        narrow(&gradients, &mut halves);
        let mut widened = vec![0.0; gradients.len()];
        widen(&halves, &mut widened);
        recover_backward(&recovery, &widened, &mut back);
        let mut of_halves = vec![3.0; wire.len()];
        recover_backward(&recovery, &halves, &mut of_halves);
        prop_assert_eq!(bits(&of_halves), bits(&back));
        narrow(&vec![5.0; out.len()], &mut halves);
        recover(&recovery, &wire, &mut halves);
        let mut rounded = vec![0; out.len()];
        narrow(&out, &mut rounded);
        prop_assert_eq!(halves, rounded);
    }
}

#[test]
#[should_panic(expected = "every lookup's row must be within the message")]
fn a_row_beyond_the_message_is_refused() {
    let recovery = Recovery {
        message: Message { counts: &[1, 1], dims: &[4, 2] },
        combined: &[1],
        offsets: &[0, 1],
        weights: None,
        features: &[RecoveredFeature { dim: 4, column: 0, pooling: Pooling::Sum }],
        bags: 1,
        stride: 4,
    };
    recover(&recovery, &[0.0; 6], &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "a feature's columns must be within the stride")]
fn a_column_that_overflows_is_refused() {
    let recovery = Recovery {
        message: Message { counts: &[1], dims: &[4] },
        combined: &[0],
        offsets: &[0, 1],
        weights: None,
        features: &[RecoveredFeature { dim: 4, column: usize::MAX - 3, pooling: Pooling::Sum }],
        bags: 1,
        stride: 4,
    };
    recover(&recovery, &[0.0; 4], &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "out must have bags * stride numbers")]
fn a_number_of_lines_that_overflows_is_refused() {
    let recovery = Recovery {
        message: Message { counts: &[1], dims: &[4] },
        combined: &[],
        offsets: &[0],
        weights: None,
        features: &[],
        bags: 1 << 62,
        stride: 8,
    };
    recover(&recovery, &[0.0; 4], &mut [0.0_f32; 0]);
}

#[test]
#[should_panic(expected = "weights must have one entry per lookup")]
fn fewer_factors_than_lookups_are_refused() {
    let recovery = Recovery {
        message: Message { counts: &[2], dims: &[4] },
        combined: &[0, 1],
        offsets: &[0, 2],
        weights: Some(&[1.0]),
        features: &[RecoveredFeature { dim: 4, column: 0, pooling: Pooling::Sum }],
        bags: 1,
        stride: 4,
    };
    recover(&recovery, &[0.0; 8], &mut [0.0; 4]);
}

#[test]
fn a_number_of_floats_that_overflows_is_refused() {
    // 2^64 floats: modulo 2^64, a message of no floats.
    let message = Message { counts: &[1 << 31; 4], dims: &[1 << 31] };
    assert_eq!(message.floats(), None);
    let packed = std::panic::catch_unwind(|| pack(message, &[], &[0], &[], &mut []));
    assert!(packed.is_err());
}

#[test]
#[should_panic(expected = "row 0 is not in category 1, whose 1 rows begin with 1")]
fn a_row_of_another_category_is_refused() {
    let message = Message { counts: &[0, 1], dims: &[2, 2] };
    pack(message, &[0.0; 4], &[1, 1], &[0], &mut [0.0; 2]);
}
