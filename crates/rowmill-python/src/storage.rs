//! Storage nodes.

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::prelude::*;
use rowmill_storage_node::{NodeSettings, Process, ProcessError};

use crate::errors::{exception, invalid};

fn raised(py: Python<'_>, error: &ProcessError) -> PyErr {
    match error {
        ProcessError::Setup(_) | ProcessError::Log(_) => invalid(py, error.to_string()),
        _ => exception(py, "StorageError", error.to_string()),
    }
}

/// A storage node that listens.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct StorageNode {
    process: Mutex<Option<Process>>,
    #[pyo3(get)]
    urls: Vec<String>,
    #[pyo3(get)]
    metrics: String,
}

#[pymethods]
impl StorageNode {
    /// Read the settings file, open the data and listen.
    #[new]
    fn new(py: Python<'_>, config: PathBuf) -> PyResult<Self> {
        let start = || Process::start(&NodeSettings::read(&config)?);
        let process = py.detach(start).map_err(|error| raised(py, &error))?;
        let (urls, metrics) = (process.urls.clone(), process.metrics.clone());
        Ok(Self { process: Mutex::new(Some(process)), urls, metrics })
    }

    /// Serve until SIGTERM or SIGINT, then finish open commands.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let process = self.process.lock().ok().and_then(|mut process| process.take());
        let process = process.ok_or_else(|| invalid(py, "the storage node has run already"))?;
        py.detach(|| process.run()).map_err(|error| raised(py, &error))
    }
}
