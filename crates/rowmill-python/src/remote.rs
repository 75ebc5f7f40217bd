//! Push checkpoints to object stores and restore them.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_remote::Remote;
use rowmill_store::{DirectoryVolume, IoChoice, PinnedCheckpoint, StoreError};

use crate::errors::remote_raised;
use crate::interrupt::interruptible;
use crate::stats::{push_dict, remote_checkpoint_dict, restore_dict};

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
    })?
    .map_err(|error| remote_raised(py, &error))?;
    push_dict(py, &info)
}

#[pyfunction]
pub(crate) fn checkpoints<'py>(py: Python<'py>, url: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let found =
        interruptible(py, |interrupted| rowmill_remote::checkpoints(&Remote::open(url)?, interrupted))?
            .map_err(|error| remote_raised(py, &error))?;
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
    })?
    .map_err(|error| remote_raised(py, &error))?;
    restore_dict(py, &info)
}
