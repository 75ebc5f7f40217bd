//! Verify, and optionally repair, a store that is not open.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_store::{DirectoryVolume, IoChoice, StoreError, Volume};

use crate::buffers::id_bytes;
use crate::errors::raised;

/// Check the store in a folder, and repair it if `repair` is set; see `rowmill_store::fsck`. Dropped ids are
/// int64 bytes, by table.
#[pyfunction]
pub(crate) fn fsck(py: Python<'_>, path: PathBuf, repair: bool) -> PyResult<Bound<'_, PyDict>> {
    let checked = py.detach(|| {
        let volume: Arc<dyn Volume> =
            Arc::new(DirectoryVolume::open(&path, IoChoice::Auto).map_err(StoreError::from)?);
        rowmill_store::fsck(&volume, repair)
    });
    let report = checked.map_err(|error| raised(py, &error))?;
    let dropped = PyDict::new(py);
    for rows in report.dropped.chunk_by(|one, next| one.0 == next.0) {
        let ids: Vec<u64> = rows.iter().map(|(_, id)| *id).collect();
        dropped.set_item(&rows[0].0, id_bytes(py, &ids))?;
    }
    let out = PyDict::new(py);
    out.set_item("epoch", report.epoch)?;
    out.set_item("files", report.files)?;
    out.set_item("segments", report.segments)?;
    out.set_item("blocks", report.blocks)?;
    out.set_item("rows", report.rows)?;
    out.set_item("versions", report.versions)?;
    out.set_item("problems", &report.problems)?;
    out.set_item("dropped", dropped)?;
    out.set_item("unnamed", &report.unnamed)?;
    out.set_item("repaired", report.repaired)?;
    Ok(out)
}
