//! Follow the feed of a store that another process trains.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_store::{DirectoryVolume, FeedChange, IoChoice, StoreError, Volume};

use crate::buffers::{float_bytes, id_bytes};
use crate::errors::raised;

/// A follower of a feed.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct FeedReader(Mutex<rowmill_store::FeedReader>);

fn volume(path: &Path) -> Result<Arc<dyn Volume>, StoreError> {
    if !path.is_dir() {
        return Err(StoreError::Missing { location: path.display().to_string() });
    }
    Ok(Arc::new(DirectoryVolume::open(path, IoChoice::Pread)?))
}

#[pymethods]
impl FeedReader {
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, since: u64) -> PyResult<Self> {
        let opened = py.detach(|| rowmill_store::FeedReader::open(&volume(&path)?, since));
        opened.map(|reader| Self(Mutex::new(reader))).map_err(|error| raised(py, &error))
    }

    #[staticmethod]
    fn at_checkpoint(py: Python<'_>, path: PathBuf, epoch: u64) -> PyResult<Self> {
        let opened = py.detach(|| rowmill_store::FeedReader::at_checkpoint(&volume(&path)?, epoch));
        opened.map(|reader| Self(Mutex::new(reader))).map_err(|error| raised(py, &error))
    }

    #[getter]
    fn position(&self, py: Python<'_>) -> u64 {
        // Another thread's poll holds the lock while it reads files, so the GIL is released.
        py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).position())
    }

    /// The next change, or `None` if no further change is published yet. Ids are int64 bytes, weights float32
    /// bytes.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let polled = py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).poll());
        let Some(event) = polled.map_err(|error| raised(py, &error))? else { return Ok(None) };
        let out = PyDict::new(py);
        out.set_item("sequence", event.sequence)?;
        out.set_item("published_ns", event.published_ns)?;
        let kind = match event.change {
            FeedChange::Rows { table, step, dim, ids, weights } => {
                out.set_item("table", table)?;
                out.set_item("step", step)?;
                out.set_item("dim", dim)?;
                out.set_item("ids", id_bytes(py, &ids))?;
                out.set_item("weights", float_bytes(py, &weights))?;
                "rows"
            }
            FeedChange::Deleted { table, step, ids } => {
                out.set_item("table", table)?;
                out.set_item("step", step)?;
                out.set_item("ids", id_bytes(py, &ids))?;
                "deleted"
            }
            FeedChange::Checkpoint { epoch } => {
                out.set_item("epoch", epoch)?;
                "checkpoint"
            }
            FeedChange::Rollback { to, epoch } => {
                out.set_item("to", to)?;
                out.set_item("epoch", epoch)?;
                "rollback"
            }
            _ => "unknown",
        };
        out.set_item("kind", kind)?;
        Ok(Some(out))
    }
}
