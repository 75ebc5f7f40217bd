//! A get that waits in the store's queue.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::buffers::float_bytes;
use crate::errors::{invalid, raised};

/// A queued get. Holds `None` after its rows were collected.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct QueuedGet(Mutex<Option<rowmill_store::QueuedGet>>);

impl QueuedGet {
    pub(crate) fn new(get: rowmill_store::QueuedGet) -> Self {
        Self(Mutex::new(Some(get)))
    }
}

#[pymethods]
impl QueuedGet {
    fn is_ready(&self) -> bool {
        let get = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        get.as_ref().is_some_and(rowmill_store::QueuedGet::is_ready)
    }

    /// Wait for the rows, float32 as bytes. Can be called once.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        let get = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let get = get.ok_or_else(|| invalid(py, "the rows of this get were already collected"))?;
        let rows = py.detach(|| get.wait()).map_err(|error| raised(py, &error))?;
        Ok(float_bytes(py, &rows))
    }
}
