//! Versions of a store: kept checkpoints.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_store::{Best, DirectoryVolume, IoChoice, NewVersion, StoreError, VersionInfo, Volume};

use crate::errors::{invalid, raised};

/// Read what a checkpoint becomes.
pub(crate) fn new_version(version: &Bound<'_, PyDict>) -> PyResult<NewVersion> {
    let field = |name: &str| version.as_any().get_item(name);
    let best = match field("best")?.extract::<Option<String>>()?.as_deref() {
        None => None,
        Some("highest") => Some(Best::Highest),
        Some("lowest") => Some(Best::Lowest),
        Some(other) => {
            let expected = format!("best must be \"highest\", \"lowest\" or None, got {other:?}");
            return Err(invalid(version.py(), expected));
        }
    };
    Ok(NewVersion {
        name: field("name")?.extract()?,
        step: field("step")?.extract()?,
        metric: field("metric")?.extract()?,
        keep: field("keep")?.extract()?,
        best,
    })
}

/// A version as a dictionary.
pub(crate) fn version_dict<'py>(py: Python<'py>, info: &VersionInfo) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("number", info.epoch)?;
    out.set_item("name", &info.name)?;
    out.set_item("made_s", info.made_s)?;
    out.set_item("step", info.step)?;
    out.set_item("metric", info.metric)?;
    out.set_item("rows", info.rows)?;
    out.set_item("bytes_alone", info.bytes_alone)?;
    Ok(out)
}

fn volume(path: &std::path::Path) -> Result<Arc<dyn Volume>, StoreError> {
    if !path.is_dir() {
        return Err(StoreError::Missing { location: path.display().to_string() });
    }
    Ok(Arc::new(DirectoryVolume::open(path, IoChoice::Auto)?))
}

#[pyfunction]
pub(crate) fn versions(py: Python<'_>, path: PathBuf) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let found = py.detach(|| rowmill_store::versions(&volume(&path)?)).map_err(|error| raised(py, &error))?;
    found.iter().map(|version| version_dict(py, version)).collect()
}

#[pyfunction]
pub(crate) fn rollback(py: Python<'_>, path: PathBuf, version: &str) -> PyResult<u64> {
    py.detach(|| rowmill_store::rollback(&volume(&path)?, version)).map_err(|error| raised(py, &error))
}

#[pyfunction]
pub(crate) fn prepare_rollback(py: Python<'_>, path: PathBuf, version: &str) -> PyResult<u64> {
    py.detach(|| rowmill_store::prepare_rollback(&volume(&path)?, version))
        .map_err(|error| raised(py, &error))
}

#[pyfunction]
pub(crate) fn settle(py: Python<'_>, path: PathBuf, at: u64) -> PyResult<()> {
    py.detach(|| rowmill_store::settle_at(&volume(&path)?, at)).map_err(|error| raised(py, &error))
}

#[pyfunction]
pub(crate) fn drop_version(py: Python<'_>, path: PathBuf, version: &str) -> PyResult<()> {
    py.detach(|| rowmill_store::drop_version(&volume(&path)?, version)).map_err(|error| raised(py, &error))
}
