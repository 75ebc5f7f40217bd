//! The first NaN or infinity, at any position.

use proptest::prelude::*;
use rowmill_kernels::{InstructionSet, first_non_finite, first_non_finite_with};

use crate::data::Random;

proptest! {
    #[test]
    fn agrees_with_the_loop(count in 0_usize..2000, bad in prop::collection::vec(0_usize..2000, 0..3), seed: u64) {
        let mut values = Random::new(seed).floats(count);
        for (which, position) in bad.into_iter().enumerate().filter(|&(_, position)| position < count) {
            values[position] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][which];
        }
        let expected = values.iter().position(|value| !value.is_finite());
        for set in InstructionSet::available() {
            prop_assert_eq!(first_non_finite_with(set, &values), expected);
        }
    }
}

#[test]
fn the_largest_floats_are_finite() {
    assert_eq!(first_non_finite(&[f32::MAX, f32::MIN, f32::MIN_POSITIVE, -0.0]), None);
    assert_eq!(first_non_finite(&[0.0, -f32::NAN]), Some(1));
}
