//! Compares gradients by address with their sums in lookup order.

use proptest::prelude::*;
use rowmill_kernels::{GradientAddresses, LookupOrder, Lookups, SKIP, accumulate_range};
use rowmill_rows::Pooling;

use crate::data::{Random, bits, dims};

proptest! {
    #[test]
    fn gradients_at_the_addresses_equal_the_sums(length in 0_usize..4, bags in 1_usize..30, dim in dims(), repeats in 0_usize..8, seed: u64) {
        let mut random = Random::new(seed);
        let count = length * bags;
        // Every row once, in order, except for some padding and some repeated rows.
        let (mut inverse, mut unique) = (Vec::new(), 0_u32);
        for _ in 0..count {
            inverse.push(match random.below(20) {
                0 => SKIP,
                kind if kind <= repeats && unique > 0 => random.below(unique as usize) as u32,
                _ => {
                    unique += 1;
                    unique - 1
                }
            });
        }
        let offsets: Vec<i64> = (0..=bags).map(|bag| (bag * length) as i64).collect();
        let lookups = Lookups { inverse: &inverse, offsets: &offsets, weights: None, pooling: Pooling::Sum };
        let gradients = random.floats(bags * dim);
        let unique = unique as usize;
        // SAFETY: every bag has `dim` floats.
        let addresses =
            unsafe { GradientAddresses::of_lookups(&lookups, unique, gradients.as_ptr(), dim, dim) };
        prop_assert_eq!(addresses.is_some(), count - unique <= count / 4);
        let Some(addresses) = addresses else { return Ok(()) };
        let mut order = LookupOrder::default();
        order.build(&lookups, unique);
        let mut sums = vec![0.0; unique * dim];
        // SAFETY: every bag has `dim` floats.
        unsafe { accumulate_range(&order, 0..unique, gradients.as_ptr(), dim, dim, &mut sums) };
        for (row, sum) in (0..).zip(sums.chunks_exact(dim)) {
            // SAFETY: every address points to `dim` floats of a bag or of a sum.
            let gradient = unsafe { std::slice::from_raw_parts(addresses.of(row), dim) };
            // A row looked up once keeps -0; a sum does not.
            let gradient: Vec<f32> = gradient.iter().map(|value| value + 0.0).collect();
            prop_assert_eq!(bits(&gradient), bits(sum));
        }
    }
}

#[test]
fn means_and_weighted_bags_have_no_addresses() {
    let mean = Lookups { inverse: &[0], offsets: &[0, 1], weights: None, pooling: Pooling::Mean };
    let weighted = Lookups { weights: Some(&[2.0]), pooling: Pooling::Sum, ..mean };
    for lookups in [mean, weighted] {
        // SAFETY: one bag of one float.
        assert!(unsafe { GradientAddresses::of_lookups(&lookups, 1, [1.0].as_ptr(), 1, 1) }.is_none());
    }
}
