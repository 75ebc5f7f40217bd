//! Compares accumulation with a loop over all lookups.

use proptest::prelude::*;
use rowmill_kernels::{InstructionSet, LookupOrder, Lookups, accumulate_range_with};
use rowmill_rows::Pooling;

use crate::data::{Bags, Random, bags, bits, dims};

fn naive(bags: &Bags, gradients: &[f32], stride: usize, dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; bags.unique * dim];
    for bag in 0..bags.offsets.len() - 1 {
        let share = 1.0 / bags.bag(bag).count() as f32;
        for (lookup, unique) in bags.bag(bag) {
            for column in 0..dim {
                let gradient = gradients[bag * stride + column];
                out[unique * dim + column] += match (&bags.weights, bags.pooling) {
                    (Some(weights), _) => gradient * weights[lookup],
                    (None, Pooling::Mean) => gradient * share,
                    (None, Pooling::Sum) => gradient,
                };
            }
        }
    }
    out
}

proptest! {
    #[test]
    fn agrees_with_the_loop(bags in bags(), dim in dims(), gap in 0_usize..4, cut in 0.0..=1.0, seed: u64) {
        let mut random = Random::new(seed);
        let stride = dim + gap;
        let gradients = random.floats((bags.offsets.len() - 1) * stride);
        let expected = naive(&bags, &gradients, stride, dim);
        let mut order = LookupOrder::default();
        order.build(&bags.lookups(), bags.unique);
        prop_assert_eq!(order.unique(), bags.unique);
        let in_bags = (0..bags.offsets.len() - 1).map(|bag| bags.bag(bag).count()).sum::<usize>();
        prop_assert_eq!(order.lookups(0..bags.unique), in_bags);
        // Two ranges, as for two threads.
        let cut = (cut * bags.unique as f64) as usize;
        for set in InstructionSet::available() {
            let mut out = random.floats(bags.unique * dim);
            let (low, high) = out.split_at_mut(cut * dim);
            // SAFETY: there is a gradient of `dim` floats every `stride` for each bag.
            unsafe {
                accumulate_range_with(set, &order, 0..cut, gradients.as_ptr(), stride, dim, low);
                accumulate_range_with(set, &order, cut..bags.unique, gradients.as_ptr(), stride, dim, high);
            }
            prop_assert_eq!(bits(&out), bits(&expected), "{} dim {}", set, dim);
        }
    }

    #[test]
    fn a_reused_order_does_not_depend_on_the_previous_batch(first in bags(), second in bags()) {
        let (mut kept, mut fresh) = (LookupOrder::default(), LookupOrder::default());
        kept.build(&first.lookups(), first.unique);
        kept.build(&second.lookups(), second.unique);
        fresh.build(&second.lookups(), second.unique);
        prop_assert_eq!(format!("{kept:?}"), format!("{fresh:?}"));
    }
}

#[test]
#[should_panic(expected = "unique index 3 of 3")]
fn an_index_out_of_range_is_refused() {
    let lookups = Lookups { inverse: &[0, 3], offsets: &[0, 2], weights: None, pooling: Pooling::Sum };
    LookupOrder::default().build(&lookups, 3);
}
