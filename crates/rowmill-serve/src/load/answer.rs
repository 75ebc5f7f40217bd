//! Compares an answer with the recorded one.

use crate::DType;
use crate::plan::Array;

/// What differs between an answer and the recorded one; `None` where nothing does by more than `tolerance`.
///
/// Values differ by their distance, divided by the recorded value where that is above 1. Types of 16 bits tolerate 8
/// times as much.
pub(super) fn difference(given: &[Array], recorded: &[Array], tolerance: f64) -> Option<String> {
    if given.len() != recorded.len() {
        return Some(format!("{} outputs, {} are recorded", given.len(), recorded.len()));
    }
    given.iter().zip(recorded).enumerate().find_map(|(number, (given, recorded))| {
        if (given.dtype, &given.shape) != (recorded.dtype, &recorded.shape) {
            return Some(format!(
                "output {number} is {:?} of shape {:?}, recorded is {:?} of shape {:?}",
                given.dtype, given.shape, recorded.dtype, recorded.shape
            ));
        }
        let half = matches!(given.dtype, DType::Float16 | DType::BFloat16);
        let tolerance = if half { 8.0 * tolerance } else { tolerance };
        given.to_f64().into_iter().zip(recorded.to_f64()).find_map(|(a, b)| {
            // Infinities are equal or wrong.
            let is_near = b.is_finite() && (a - b).abs() <= tolerance * b.abs().max(1.0);
            let is_alike = a == b || (a.is_nan() && b.is_nan()) || is_near;
            (!is_alike).then(|| format!("output {number} has {a}, recorded is {b}"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    fn floats(values: &[f32]) -> Array {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Array { dtype: DType::Float32, shape: vec![values.len()], data: Buffer::from(&data[..]) }
    }

    #[test]
    fn values_shapes_types_and_numbers_of_outputs_count() {
        let recorded = [floats(&[0.5, 2000.0, f32::NAN, f32::INFINITY])];
        let alike = |values: &[f32]| difference(&[floats(values)], &recorded, 1e-3);
        assert_eq!(alike(&[0.5005, 2001.0, f32::NAN, f32::INFINITY]), None);
        for wrong in [
            &[0.502, 2000.0, f32::NAN, f32::INFINITY][..],
            &[0.5, 2003.0, f32::NAN, f32::INFINITY],
            &[0.5, 2000.0, 1.0, f32::INFINITY],
            &[f32::NAN, 2000.0, f32::NAN, f32::INFINITY],
            &[0.5, 2000.0, f32::NAN, f32::NEG_INFINITY],
            &[0.5, 2000.0],
        ] {
            assert!(alike(wrong).is_some(), "{wrong:?}");
        }
        assert!(difference(&[], &recorded, 1e-3).unwrap().contains("0 outputs"));
        let integers = [Array { dtype: DType::Int32, ..floats(&[0.0]) }];
        assert!(difference(&integers, &[floats(&[0.0])], 1e-3).unwrap().contains("Int32"));
    }
}
