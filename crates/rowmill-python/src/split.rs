//! An update of split dense weights, spread over threads.

use pyo3::prelude::*;

use crate::buffers::{halves, halves_mut};
use crate::errors::invalid;
use crate::threads::spread;

/// Weights that are worth a thread: a tenth of a millisecond.
const WEIGHTS_PER_THREAD: usize = 1 << 17;

/// `w -= lr * g` on the upper and lower halves of weights, by bfloat16 gradients; all of them as int16.
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
            format!("{count} gradients need as many halves, got {} and {}", upper.len(), lower.len()),
        ));
    }
    let threads = threads.min(count.div_ceil(WEIGHTS_PER_THREAD)).max(1);
    // Whole cache lines, so that no two threads write to one.
    let part = count.div_ceil(threads).next_multiple_of(64).max(64);
    py.detach(|| {
        let parts = upper.chunks_mut(part).zip(lower.chunks_mut(part)).zip(gradient.chunks(part));
        spread(parts, threads, |((upper, lower), gradient)| {
            rowmill_kernels::split_sgd(upper, lower, gradient, lr);
        });
    });
    Ok(())
}
