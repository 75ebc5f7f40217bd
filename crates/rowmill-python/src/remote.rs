//! Push checkpoints to object stores and restore them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_remote::{Remote, RemoteError};
use rowmill_store::{DirectoryVolume, IoChoice, PinnedCheckpoint, StoreError};

use crate::errors::remote_raised;
use crate::stats::{push_dict, remote_checkpoint_dict, restore_dict};

/// Run `work` without the GIL. It must stop soon after the function passed to it returns true, which a signal
/// causes.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl Send + FnOnce(&dyn Fn() -> bool) -> Result<T, RemoteError>,
) -> PyResult<T> {
    let signal: Mutex<Option<PyErr>> = Mutex::new(None);
    let result = py.detach(|| {
        let interrupted = || match Python::attach(|py: Python<'_>| py.check_signals()) {
            Ok(()) => false,
            Err(error) => {
                *signal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                true
            }
        };
        work(&interrupted)
    });
    match signal.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => result.map_err(|error| remote_raised(py, &error)),
    }
}

#[pyfunction]
pub(crate) fn push_folder<'py>(
    py: Python<'py>,
    path: PathBuf,
    url: &str,
    keep: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let info = interruptible(py, |interrupted| {
        let remote = Remote::open(url)?;
        let volume = DirectoryVolume::open(&path, IoChoice::Auto).map_err(StoreError::from)?;
        let checkpoint = PinnedCheckpoint::of_volume(Arc::new(volume))?;
        rowmill_remote::push(&checkpoint, &remote, keep, interrupted)
    })?;
    push_dict(py, &info)
}

#[pyfunction]
pub(crate) fn checkpoints<'py>(py: Python<'py>, url: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let found =
        interruptible(py, |interrupted| rowmill_remote::checkpoints(&Remote::open(url)?, interrupted))?;
    found.iter().map(|checkpoint| remote_checkpoint_dict(py, checkpoint)).collect()
}

#[pyfunction]
pub(crate) fn restore<'py>(
    py: Python<'py>,
    url: &str,
    path: PathBuf,
    checkpoint: Option<u64>,
) -> PyResult<Bound<'py, PyDict>> {
    let info = interruptible(py, |interrupted| {
        rowmill_remote::restore(&Remote::open(url)?, &path, checkpoint, interrupted)
    })?;
    restore_dict(py, &info)
}
