//! The lock of a folder that is not a store's.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use rowmill_io::VolumeLock;
use rowmill_store::{DirectoryVolume, IoChoice, StoreError, Volume};

use crate::errors::raised;

/// Keeps other processes out of a folder until it is released or collected, or the process ends. Forked
/// children do not hold the lock.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct FolderLock(Mutex<Option<Box<dyn VolumeLock>>>);

#[pymethods]
impl FolderLock {
    #[staticmethod]
    fn take(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let taken = py.detach(|| DirectoryVolume::open(&path, IoChoice::Pread)?.lock());
        taken.map(|lock| Self(Mutex::new(Some(lock)))).map_err(|error| raised(py, &StoreError::from(error)))
    }

    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
