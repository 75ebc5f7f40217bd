//! The Python binding `rowmill._core`: converts buffers, releases the GIL, maps errors. No logic.

use pyo3::prelude::*;

/// The module `rowmill._core`.
#[pymodule]
mod _core {}
