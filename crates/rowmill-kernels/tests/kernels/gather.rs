//! Compares gathering with `copy_from_slice`.

use proptest::prelude::*;
use rowmill_kernels::{InstructionSet, RowPtr, gather_with};
use rowmill_rows::Dtype;

use crate::data::{Random, bits, dims};

proptest! {
    #[test]
    fn agrees_with_the_loop(
        count in 0_usize..60,
        dim in prop_oneof![1 => Just(0), 15 => dims()],
        gap in 0_usize..4,
        seed: u64,
    ) {
        let mut random = Random::new(seed);
        let rows: Vec<Vec<f32>> = (0..5).map(|_| random.floats(dim)).collect();
        let chosen: Vec<usize> = (0..count).map(|_| random.below(5)).collect();
        let pointers: Vec<RowPtr> = chosen.iter().map(|&row| rows[row].as_ptr()).collect();
        let stride = dim + gap;
        // The last row needs no gap after it.
        let before = random.floats(if count == 0 { 0 } else { (count - 1) * stride + dim });
        let mut expected = before.clone();
        for (i, &row) in chosen.iter().enumerate() {
            expected[i * stride..][..dim].copy_from_slice(&rows[row]);
        }
        for set in InstructionSet::available() {
            let mut out = before.clone();
            // SAFETY: rows have `dim` floats.
            unsafe { gather_with(set, &pointers, Dtype::F32, dim, &mut out, stride) };
            prop_assert_eq!(bits(&out), bits(&expected), "{} dim {}", set, dim);
        }
    }
}

#[test]
#[should_panic(expected = "no room for every row")]
fn a_too_small_output_is_refused() {
    let row = [1.0, 2.0];
    // SAFETY: the row has two floats.
    unsafe { rowmill_kernels::gather(&[row.as_ptr(), row.as_ptr()], Dtype::F32, 2, &mut [0.0; 3], 2) };
}

#[test]
#[should_panic(expected = "no room for every row, 9223372036854775808 floats apart")]
fn a_stride_that_wraps_around_is_refused() {
    let row = [1.0, 2.0];
    // SAFETY: the row has two floats.
    unsafe { rowmill_kernels::gather(&[row.as_ptr(); 3], Dtype::F32, 2, &mut [0.0; 2], 1 << 63) };
}
