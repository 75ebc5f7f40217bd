//! The dot interaction of a batch; threads share its samples.

use std::ops::Range;

use pyo3::prelude::*;
use rowmill_kernels::Interaction;

use crate::buffers::{Buffer, FloatArray, is_bf16};
use crate::errors::invalid;
use crate::threads::spread;

/// Floats of input per task: few enough that threads finish together, and many more than the cost of taking a
/// task.
const TASK_FLOATS: usize = 1 << 16;

/// Interact the vectors of `B` samples: dense `[B, D]` and pooled `[B, F, D]` give `[B, D + F (F + 1) / 2]`.
/// `shape` is `(B, F, D)`. All arrays are float32, or all bfloat16 bits as int16.
#[pyfunction]
pub(crate) fn interact(
    py: Python<'_>,
    dense: &Bound<'_, PyAny>,
    pooled: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    shape: (usize, usize, usize),
    threads: usize,
) -> PyResult<()> {
    let forward = if is_bf16(dense) { forward::<i16> } else { forward::<f32> };
    forward(py, dense, pooled, out, shape, threads)
}

fn forward<T: FloatArray>(
    py: Python<'_>,
    dense: &Bound<'_, PyAny>,
    pooled: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    shape: (usize, usize, usize),
    threads: usize,
) -> PyResult<()> {
    let (samples, features, dim) = shape;
    let shape = Interaction { samples, features, dim };
    check_shape(py, shape)?;
    let read = |array, name| Buffer::<T>::read(array, name, T::DTYPE);
    let (dense, pooled) = (read(dense, "dense")?, read(pooled, "pooled")?);
    let mut out = Buffer::<T>::write(out, "out", T::DTYPE)?;
    let (dense, pooled, out) = (T::floats(&dense), T::floats(&pooled), T::floats_mut(&mut out));
    check(py, "dense", dense.len(), shape.dense_len())?;
    check(py, "pooled", pooled.len(), shape.pooled_len())?;
    check(py, "out", out.len(), shape.out_len())?;
    let out = Shared::new(out, shape.width());
    py.detach(|| {
        spread_samples(shape, threads, |samples| {
            let part = shape.part(&samples);
            let pooled = of(pooled, &samples, features * dim);
            // SAFETY: `spread_samples` gives every sample to exactly one call.
            let out = unsafe { out.of(&samples) };
            rowmill_kernels::interact(part, of(dense, &samples, dim), pooled, out);
        });
    });
    Ok(())
}

/// The gradients of dense and pooled vectors, given the gradient of the output of [`interact`]. All arrays
/// have one type.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one argument per tensor")]
pub(crate) fn interact_backward(
    py: Python<'_>,
    dense: &Bound<'_, PyAny>,
    pooled: &Bound<'_, PyAny>,
    gradient: &Bound<'_, PyAny>,
    dense_gradient: &Bound<'_, PyAny>,
    pooled_gradient: &Bound<'_, PyAny>,
    shape: (usize, usize, usize),
    threads: usize,
) -> PyResult<()> {
    let backward = if is_bf16(dense) { backward::<i16> } else { backward::<f32> };
    backward(py, dense, pooled, gradient, dense_gradient, pooled_gradient, shape, threads)
}

#[allow(clippy::too_many_arguments, reason = "one argument per tensor")]
fn backward<T: FloatArray>(
    py: Python<'_>,
    dense: &Bound<'_, PyAny>,
    pooled: &Bound<'_, PyAny>,
    gradient: &Bound<'_, PyAny>,
    dense_gradient: &Bound<'_, PyAny>,
    pooled_gradient: &Bound<'_, PyAny>,
    shape: (usize, usize, usize),
    threads: usize,
) -> PyResult<()> {
    let (samples, features, dim) = shape;
    let shape = Interaction { samples, features, dim };
    check_shape(py, shape)?;
    let read = |array, name| Buffer::<T>::read(array, name, T::DTYPE);
    let write = |array, name| Buffer::<T>::write(array, name, T::DTYPE);
    let (dense, pooled, gradient) =
        (read(dense, "dense")?, read(pooled, "pooled")?, read(gradient, "gradient")?);
    let mut dense_gradient = write(dense_gradient, "dense_gradient")?;
    let mut pooled_gradient = write(pooled_gradient, "pooled_gradient")?;
    let (dense, pooled, gradient) = (T::floats(&dense), T::floats(&pooled), T::floats(&gradient));
    let dense_gradient = T::floats_mut(&mut dense_gradient);
    let pooled_gradient = T::floats_mut(&mut pooled_gradient);
    check(py, "dense", dense.len(), shape.dense_len())?;
    check(py, "pooled", pooled.len(), shape.pooled_len())?;
    check(py, "gradient", gradient.len(), shape.out_len())?;
    check(py, "dense_gradient", dense_gradient.len(), shape.dense_len())?;
    check(py, "pooled_gradient", pooled_gradient.len(), shape.pooled_len())?;
    let dense_gradient = Shared::new(dense_gradient, dim);
    let pooled_gradient = Shared::new(pooled_gradient, features * dim);
    py.detach(|| {
        spread_samples(shape, threads, |samples| {
            let part = shape.part(&samples);
            let dense = of(dense, &samples, dim);
            let pooled = of(pooled, &samples, features * dim);
            let gradient = of(gradient, &samples, shape.width());
            // SAFETY: `spread_samples` gives every sample to exactly one call.
            let (dense_gradient, pooled_gradient) =
                unsafe { (dense_gradient.of(&samples), pooled_gradient.of(&samples)) };
            rowmill_kernels::interact_backward(
                part,
                dense,
                pooled,
                gradient,
                dense_gradient,
                pooled_gradient,
            );
        });
    });
    Ok(())
}

fn check_shape(py: Python<'_>, shape: Interaction) -> PyResult<()> {
    if shape.fits() {
        return Ok(());
    }
    let Interaction { samples, features, dim } = shape;
    let got = format!("{samples} samples of {features} features of {dim} floats");
    Err(invalid(py, format!("shape must fit in memory, got {got}")))
}

fn check(py: Python<'_>, name: &str, got: usize, expected: usize) -> PyResult<()> {
    if got == expected {
        return Ok(());
    }
    Err(invalid(py, format!("{name} must have {expected} floats for this shape, got {got}")))
}

/// The floats of a range of samples.
fn of<'a, T>(floats: &'a [T], samples: &Range<usize>, per_sample: usize) -> &'a [T] {
    &floats[samples.start * per_sample..samples.end * per_sample]
}

/// Floats that several threads write, each the floats of different samples.
struct Shared<T> {
    floats: *mut T,
    len: usize,
    per_sample: usize,
}

// SAFETY: callers of `of` guarantee that no sample is accessed twice at the same time.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn new(floats: &mut [T], per_sample: usize) -> Self {
        Self { floats: floats.as_mut_ptr(), len: floats.len(), per_sample }
    }

    /// The floats of a range of samples.
    ///
    /// # Safety
    /// The slice is still borrowed by the caller, and no other thread or borrow has one of these samples.
    #[allow(clippy::mut_from_ref, reason = "no other borrow has these samples")]
    unsafe fn of(&self, samples: &Range<usize>) -> &mut [T] {
        let (start, end) = (samples.start * self.per_sample, samples.end * self.per_sample);
        assert!(start <= end && end <= self.len, "samples {samples:?} of {} floats", self.len);
        // SAFETY: the range is inside the slice, as asserted; the caller guarantees that it is not shared.
        unsafe { std::slice::from_raw_parts_mut(self.floats.add(start), end - start) }
    }
}

/// Call `work` with all samples, in parts, on up to `threads` threads. The division does not affect the
/// results.
fn spread_samples(shape: Interaction, threads: usize, work: impl Fn(Range<usize>) + Sync) {
    let per_sample = (shape.vectors() * shape.dim).max(1);
    let step = (TASK_FLOATS / per_sample).max(1);
    spread(0..shape.samples.div_ceil(step), threads, |task| {
        let start = task * step;
        work(start..(start + step).min(shape.samples));
    });
}
