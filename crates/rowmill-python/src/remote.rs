//! Push checkpoints to object stores and restore them.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
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

/// The bytes of an object at a URL; `None` if it does not exist.
#[pyfunction]
pub(crate) fn remote_read<'py>(
    py: Python<'py>,
    url: &str,
    key: &str,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let found =
        interruptible(py, |interrupted| rowmill_remote::read_object(&Remote::open(url)?, key, interrupted))?
            .map_err(|error| remote_raised(py, &error))?;
    Ok(found.map(|bytes| PyBytes::new(py, &bytes)))
}

/// Write an object at a URL.
#[pyfunction]
pub(crate) fn remote_write(py: Python<'_>, url: &str, key: &str, content: Vec<u8>) -> PyResult<()> {
    interruptible(py, |interrupted| {
        rowmill_remote::write_object(&Remote::open(url)?, key, content, interrupted)
    })?
    .map_err(|error| remote_raised(py, &error))
}

/// Keys of the objects in a folder at a URL, and when they were written, in seconds since 1970.
#[pyfunction]
pub(crate) fn remote_list(py: Python<'_>, url: &str, folder: &str) -> PyResult<Vec<(String, i64)>> {
    interruptible(py, |interrupted| rowmill_remote::list_objects(&Remote::open(url)?, folder, interrupted))?
        .map_err(|error| remote_raised(py, &error))
}

/// Remove objects at a URL.
#[pyfunction]
pub(crate) fn remote_remove(py: Python<'_>, url: &str, keys: Vec<String>) -> PyResult<()> {
    interruptible(py, |interrupted| rowmill_remote::remove_objects(&Remote::open(url)?, keys, interrupted))?
        .map_err(|error| remote_raised(py, &error))
}
