//! SGD on split dense weights, spread over threads.

use pyo3::prelude::*;

use crate::buffers::{halves, halves_mut};
use crate::errors::invalid;
use crate::threads::spread;

/// Least number of weights per thread: updating as many takes 0.1 ms.
const WEIGHTS_PER_THREAD: usize = 1 << 17;

/// `w -= lr * g` on weights split into upper and lower halves, with bfloat16 gradients. All arrays are int16
/// of equal length.
#[pyfunction]
pub(crate) fn split_sgd(
    py: Python<'_>,
    upper: &Bound<'_, PyAny>,
    lower: &Bound<'_, PyAny>,
    gradient: &Bound<'_, PyAny>,
    lr: f32,
    threads: usize,
) -> PyResult<()> {
    let gradient = halves(gradient, "gradient")?;
    let (mut upper, mut lower) = (halves_mut(upper, "upper")?, halves_mut(lower, "lower")?);
    let (upper, lower, gradient) = (upper.halves_mut(), lower.halves_mut(), gradient.halves());
    let count = gradient.len();
    if upper.len() != count || lower.len() != count {
        return Err(invalid(
            py,
            format!(
                "upper and lower must have one entry per gradient ({count}), got {} and {}",
                upper.len(),
                lower.len()
            ),
        ));
    }
    let threads = threads.min(count.div_ceil(WEIGHTS_PER_THREAD)).max(1);
    // Whole cache lines, so that no two threads write to the same line.
    let part = count.div_ceil(threads).next_multiple_of(64).max(64);
    py.detach(|| {
        let parts = upper.chunks_mut(part).zip(lower.chunks_mut(part)).zip(gradient.chunks(part));
        spread(parts, threads, |((upper, lower), gradient)| {
            rowmill_kernels::split_sgd(upper, lower, gradient, lr);
        });
    });
    Ok(())
}
