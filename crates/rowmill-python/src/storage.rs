//! Storage nodes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use rowmill_host::{HostError, HostSettings, NvmeUrl};
use rowmill_storage_node::{Followed, NodeSettings, Process, ProcessError, SendError};
use rowmill_store::{DirectoryVolume, Dtype, IoChoice, StoreError, Volume, WeightsSource};

use crate::access::Access;
use crate::errors::{exception, invalid, raised as store_raised};

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

/// Name, weights per row, dtype, and ids of a dense table.
type TableStatus = (String, u32, &'static str, Option<u64>);

fn send_raised(py: Python<'_>, error: &SendError) -> PyErr {
    match error {
        SendError::Store(error) => store_raised(py, error),
        SendError::Host(HostError::Url { .. } | HostError::Namespace { .. }) => {
            invalid(py, error.to_string())
        }
        _ => exception(py, "StorageError", error.to_string()),
    }
}

fn target(py: Python<'_>, url: &str, access: &Access) -> PyResult<(NvmeUrl, HostSettings)> {
    let url = url.parse::<NvmeUrl>().map_err(|error| invalid(py, error.to_string()))?;
    Ok((url, access.settings(py)?))
}

fn volume(path: &Path) -> Result<Arc<dyn Volume>, StoreError> {
    if !path.is_dir() {
        return Err(StoreError::Missing { location: path.display().to_string() });
    }
    Ok(Arc::new(DirectoryVolume::open(path, IoChoice::Auto)?))
}

fn dtype(py: Python<'_>, name: Option<&str>) -> PyResult<Option<Dtype>> {
    match name {
        None => Ok(None),
        Some("fp32") => Ok(Some(Dtype::F32)),
        Some("bf16") => Ok(Some(Dtype::Bf16)),
        Some(other) => Err(invalid(py, format!("dtype must be \"fp32\" or \"bf16\", got {other:?}"))),
    }
}

/// Fill a namespace with the rows of a store, or of the stores of all ranks: folders and numbers of checkpoints. Tables in
/// `replicated` are copied from the first store. Returns tables, rows, bytes and the sequence number.
#[pyfunction]
#[pyo3(signature = (sources, replicated, url, *, dtype_name, access))]
pub(crate) fn storage_fill(
    py: Python<'_>,
    sources: Vec<(PathBuf, Option<u64>)>,
    replicated: Vec<String>,
    url: &str,
    dtype_name: Option<&str>,
    access: Access,
) -> PyResult<(usize, u64, u64, u64)> {
    let (url, settings) = target(py, url, &access)?;
    let dtype = dtype(py, dtype_name)?;
    let filled = py.detach(|| {
        let sources = sources.iter().map(|(path, at)| Ok((volume(path)?, *at)));
        let sources = sources.collect::<Result<Vec<WeightsSource>, StoreError>>()?;
        rowmill_storage_node::fill(&sources, &replicated, &url, &settings, dtype)
    });
    let report = filled.map_err(|error| send_raised(py, &error))?;
    Ok((report.tables, report.rows, report.bytes, report.sequence))
}

/// The tables of a namespace (name, weights per row, dtype, ids of a dense table) and the last frame that it has.
#[pyfunction]
#[pyo3(signature = (url, *, access))]
pub(crate) fn storage_status(py: Python<'_>, url: &str, access: Access) -> PyResult<(Vec<TableStatus>, u64)> {
    let (url, settings) = target(py, url, &access)?;
    let found = py.detach(|| rowmill_storage_node::status(&url, &settings));
    let (tables, sequence) = found.map_err(|error| send_raised(py, &error))?;
    let table = |entry: rowmill_nvme::TableEntry| {
        let dtype = if entry.dtype == rowmill_nvme::RowDtype::Fp32 { "fp32" } else { "bf16" };
        let rows = match entry.index {
            rowmill_nvme::TableIndex::Dense { rows, .. } => Some(rows),
            rowmill_nvme::TableIndex::Hash => None,
        };
        (entry.name, entry.dim, dtype, rows)
    };
    Ok((tables.into_iter().map(table).collect(), sequence))
}

/// Keeps a namespace up to date with the feed of a store.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct StorageFollower(Mutex<rowmill_storage_node::Follower>);

#[pymethods]
impl StorageFollower {
    #[new]
    #[pyo3(signature = (store, url, *, dtype_name, access))]
    fn new(
        py: Python<'_>,
        store: PathBuf,
        url: &str,
        dtype_name: Option<&str>,
        access: Access,
    ) -> PyResult<Self> {
        let (url, settings) = target(py, url, &access)?;
        let dtype = dtype(py, dtype_name)?;
        let connect = || {
            let volume = volume(&store)?;
            rowmill_storage_node::Follower::connect(volume, &url, &settings, dtype)
        };
        let follower = py.detach(connect).map_err(|error| send_raised(py, &error))?;
        Ok(Self(Mutex::new(follower)))
    }

    /// Send what is published, for about this time. Returns fills, frames, rows, sequence number, the time at which the
    /// last frame was published, in nanoseconds since 1970, and whether the node refuses the next one for lack of space.
    fn run(&self, py: Python<'_>, seconds: f64) -> PyResult<(u64, u64, u64, u64, u64, bool)> {
        let time = Duration::try_from_secs_f64(seconds)
            .map_err(|_| invalid(py, format!("{seconds} is no number of seconds")))?;
        let run = || self.0.lock().unwrap_or_else(PoisonError::into_inner).run(time);
        let followed = py.detach(run).map_err(|error| send_raised(py, &error))?;
        let Followed { fills, frames, rows, sequence, published_ns, is_refused } = followed;
        Ok((fills, frames, rows, sequence, published_ns, is_refused))
    }
}
