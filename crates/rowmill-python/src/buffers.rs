//! Python buffers as slices. Each argument is checked once; errors name it.

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use rowmill_kernels::Float;
use rowmill_store::Pooled;

use crate::errors::invalid;

/// A contiguous buffer of `T`, borrowed for one call; `None` if it has no items.
///
/// An array without items may lie at any address, such as that of an empty `bytes`, which `PyBuffer` would refuse.
pub(crate) struct Buffer<T: Element>(Option<PyBuffer<T>>);

impl<T: Element> Buffer<T> {
    /// Borrow an argument's buffer for reading. `name` and `dtype` are for errors.
    pub(crate) fn read(argument: &Bound<'_, PyAny>, name: &str, dtype: &str) -> PyResult<Self> {
        let wrong =
            |what: String| invalid(argument.py(), format!("{name} must be {what}, got {}", kind(argument)));
        let buffer = PyUntypedBuffer::get(argument).map_err(|_| wrong(format!("an array of {dtype}")))?;
        if !holds::<T>(&buffer) {
            return Err(wrong(format!("an array of {dtype}")));
        }
        if buffer.item_count() == 0 {
            return Ok(Self(None));
        }
        if !buffer.is_c_contiguous() {
            return Err(invalid(
                argument.py(),
                format!("{name} must be contiguous: make a contiguous copy first"),
            ));
        }
        let aligned = buffer.into_typed().map_err(|_| {
            let bytes = align_of::<T>();
            invalid(
                argument.py(),
                format!("{name} must begin at a multiple of {bytes} bytes: make a copy first"),
            )
        })?;
        Ok(Self(Some(aligned)))
    }

    /// Borrow an argument's buffer for writing; it must not be read-only.
    pub(crate) fn write(argument: &Bound<'_, PyAny>, name: &str, dtype: &str) -> PyResult<Self> {
        let buffer = Self::read(argument, name, dtype)?;
        if buffer.0.as_ref().is_some_and(|buffer| buffer.readonly()) {
            return Err(invalid(argument.py(), format!("{name} must be writable, got a read-only array")));
        }
        Ok(buffer)
    }

    /// The items to read.
    pub(crate) fn slice(&self) -> &[T] {
        let Some(buffer) = &self.0 else { return &[] };
        // SAFETY: the buffer is contiguous and holds `item_count` aligned items of type `T` (checked by
        // `PyBuffer`), and stays in place while `self` lives. No thread writes it meanwhile (module docs).
        unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.item_count()) }
    }

    /// The items to write; the buffer must come from [`Buffer::write`].
    fn slice_mut(&mut self) -> &mut [T] {
        let Some(buffer) = &self.0 else { return &mut [] };
        // SAFETY: as in `slice`; the buffer is writable, and no other thread uses it meanwhile (module docs).
        unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast(), buffer.item_count()) }
    }
}

impl Buffer<i16> {
    /// bfloat16 numbers as their 16 bits.
    pub(crate) fn halves(&self) -> &[u16] {
        let halves = self.slice();
        // SAFETY: i16 and u16 have one size and alignment, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(halves.as_ptr().cast(), halves.len()) }
    }

    /// bfloat16 numbers to write; the buffer must come from [`Buffer::write`].
    pub(crate) fn halves_mut(&mut self) -> &mut [u16] {
        let halves = self.slice_mut();
        // SAFETY: i16 and u16 have one size and alignment, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts_mut(halves.as_mut_ptr().cast(), halves.len()) }
    }
}

impl Buffer<i32> {
    /// Counts and positions as unsigned numbers: -1 becomes the largest.
    pub(crate) fn numbers(&self) -> &[u32] {
        let numbers = self.slice();
        // SAFETY: i32 and u32 have one size and alignment, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()) }
    }

    /// Unsigned numbers to write; the buffer must come from [`Buffer::write`].
    pub(crate) fn numbers_mut(&mut self) -> &mut [u32] {
        let numbers = self.slice_mut();
        // SAFETY: i32 and u32 have one size and alignment, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), numbers.len()) }
    }
}

impl Buffer<i64> {
    /// Ids to write; the buffer must come from [`Buffer::write`].
    pub(crate) fn ids_mut(&mut self) -> &mut [u64] {
        let ids = self.slice_mut();
        // SAFETY: i64 and u64 have one size and alignment, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts_mut(ids.as_mut_ptr().cast(), ids.len()) }
    }

    /// Ids as their 64 bits.
    pub(crate) fn ids(&self) -> &[u64] {
        let ids = self.slice();
        // SAFETY: i64 and u64 have one size and alignment, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(ids.as_ptr().cast(), ids.len()) }
    }

    /// Positions to read.
    pub(crate) fn positions(&self) -> &[i64] {
        self.slice()
    }
}

impl Buffer<f32> {
    /// Values to read.
    pub(crate) fn values(&self) -> &[f32] {
        self.slice()
    }

    /// Values to write; the buffer must come from [`Buffer::write`].
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        self.slice_mut()
    }
}

/// Borrow an int64 array of ids.
pub(crate) fn ids(argument: &Bound<'_, PyAny>) -> PyResult<Buffer<i64>> {
    Buffer::read(argument, "ids", "int64")
}

/// Borrow an int16 array of bfloat16 bits.
pub(crate) fn halves(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Buffer<i16>> {
    Buffer::read(argument, name, "int16")
}

/// Borrow an int16 array of bfloat16 bits for writing.
pub(crate) fn halves_mut(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Buffer<i16>> {
    Buffer::write(argument, name, "int16")
}

/// Borrow an int32 array of unsigned numbers.
pub(crate) fn numbers(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Buffer<i32>> {
    Buffer::read(argument, name, "int32")
}

/// Borrow an int32 array of unsigned numbers for writing.
pub(crate) fn numbers_mut(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Buffer<i32>> {
    Buffer::write(argument, name, "int32")
}

/// Borrow a float32 array.
pub(crate) fn floats(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Buffer<f32>> {
    Buffer::read(argument, name, "float32")
}

/// Borrow a float32 array for writing.
pub(crate) fn floats_mut(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Buffer<f32>> {
    Buffer::write(argument, name, "float32")
}

/// Element types of float arrays: `f32`, or `i16` for the bits of bfloat16, for which `NumPy` has no type.
pub(crate) trait FloatArray: Element {
    /// Element type in kernels.
    type Float: Pooled + Float + Send + Sync;
    /// Name of the dtype, for errors.
    const DTYPE: &str;

    /// The numbers of an array.
    fn floats(buffer: &Buffer<Self>) -> &[Self::Float];

    /// The numbers of an array to write; the buffer must come from [`Buffer::write`].
    fn floats_mut(buffer: &mut Buffer<Self>) -> &mut [Self::Float];
}

impl FloatArray for f32 {
    type Float = f32;
    const DTYPE: &str = "float32";

    fn floats(buffer: &Buffer<Self>) -> &[f32] {
        buffer.values()
    }

    fn floats_mut(buffer: &mut Buffer<Self>) -> &mut [f32] {
        buffer.values_mut()
    }
}

impl FloatArray for i16 {
    type Float = u16;
    const DTYPE: &str = "int16";

    fn floats(buffer: &Buffer<Self>) -> &[u16] {
        buffer.halves()
    }

    fn floats_mut(buffer: &mut Buffer<Self>) -> &mut [u16] {
        buffer.halves_mut()
    }
}

/// Whether an array has dtype int16, which holds the bits of bfloat16.
pub(crate) fn is_bf16(argument: &Bound<'_, PyAny>) -> bool {
    PyUntypedBuffer::get(argument).is_ok_and(|buffer| holds::<i16>(&buffer))
}

/// Whether the items of a buffer are of type `T`.
fn holds<T: Element>(buffer: &PyUntypedBuffer) -> bool {
    buffer.item_size() == size_of::<T>() && T::is_compatible_format(buffer.format())
}

/// Ids as a bytearray (int64), which Python may keep and change.
pub(crate) fn id_bytes<'py>(py: Python<'py>, ids: &[u64]) -> Bound<'py, PyByteArray> {
    // SAFETY: every initialised u64 is eight initialised bytes.
    PyByteArray::new(py, unsafe { std::slice::from_raw_parts(ids.as_ptr().cast(), size_of_val(ids)) })
}

/// Positions as a bytearray (int64), which Python may keep and change.
pub(crate) fn position_bytes<'py>(py: Python<'py>, positions: &[i64]) -> Bound<'py, PyByteArray> {
    // SAFETY: every initialised i64 is eight initialised bytes.
    PyByteArray::new(py, unsafe {
        std::slice::from_raw_parts(positions.as_ptr().cast(), size_of_val(positions))
    })
}

/// Floats as a bytearray (float32), which Python may keep and change.
pub(crate) fn float_bytes<'py>(py: Python<'py>, values: &[f32]) -> Bound<'py, PyByteArray> {
    // SAFETY: every initialised f32 is four initialised bytes.
    PyByteArray::new(py, unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) })
}

/// Type of an argument, for errors: its dtype if it has one.
fn kind(argument: &Bound<'_, PyAny>) -> String {
    match argument.getattr("dtype") {
        Ok(dtype) => dtype.to_string(),
        Err(_) => argument.get_type().name().map_or_else(|_| "another type".into(), |name| name.to_string()),
    }
}
