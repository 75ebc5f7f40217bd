//! Rows of a storage node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_host::{Client, HostError, HostSettings, NvmeUrl, Rows, TableIndex};
use rowmill_rows::IdBag;
use rowmill_serve::RowSource;
use rowmill_sync::unranked::Mutex;

use crate::access::Access;
use crate::batch::Batch;
use crate::buffers::{Buffer, FloatArray, floats_mut, ids as id_buffer, is_bf16};
use crate::errors::{exception, host_raised, invalid};

/// The rows of a namespace.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct NodeRows {
    /// None after `close`.
    rows: Mutex<Option<Arc<Rows>>>,
    wait: Duration,
    #[pyo3(get)]
    url: String,
}

fn connect(url: &str, settings: HostSettings) -> Result<Rows, HostError> {
    let url: NvmeUrl = url.parse()?;
    let client = Client::connect(&url, &settings)?;
    Rows::open(Arc::new(client), &url)
}

#[pymethods]
impl NodeRows {
    /// Connect.
    #[staticmethod]
    #[pyo3(signature = (url, *, access, wait_s))]
    fn open(py: Python<'_>, url: &str, access: Access, wait_s: f64) -> PyResult<Self> {
        let wait = Duration::try_from_secs_f64(wait_s).map_err(|error| {
            invalid(py, format!("wait_deadline_s must be a number of seconds >= 0, got {wait_s}: {error}"))
        })?;
        let settings = access.settings(py)?;
        let rows = py.detach(|| connect(url, settings)).map_err(|error| host_raised(py, &error))?;
        let url = rows.url().to_owned();
        Ok(Self { rows: Mutex::new(Some(Arc::new(rows))), wait, url })
    }

    /// The tables: `name`, `dim`, `dtype`, `dense_rows` (ids are below; None: any) and `group`.
    fn tables<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let rows = self.rows(py)?;
        let tables = py.detach(|| rows.tables()).map_err(|error| host_raised(py, &error))?;
        tables
            .entries()
            .iter()
            .map(|entry| {
                let table = PyDict::new(py);
                table.set_item("name", &entry.name)?;
                table.set_item("dim", entry.dim)?;
                table.set_item("dtype", if entry.dtype.bytes() == 4 { "fp32" } else { "bf16" })?;
                let dense_rows = match entry.index {
                    TableIndex::Hash => None,
                    TableIndex::Dense { rows, .. } => Some(rows),
                };
                table.set_item("dense_rows", dense_rows)?;
                table.set_item("group", entry.group)?;
                Ok(table)
            })
            .collect()
    }

    /// Pool bags, as `Store.lookup` does without training.
    #[allow(clippy::too_many_arguments, reason = "one argument per part of a batch and per option")]
    fn lookup(
        &self,
        py: Python<'_>,
        tables: Vec<String>,
        ids: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        features: Vec<usize>,
        bags: usize,
        paddings: Vec<Option<i64>>,
        means: Vec<bool>,
        out: &Bound<'_, PyAny>,
        row_stride: usize,
    ) -> PyResult<()> {
        let batch = Batch::read(py, tables.len(), ids, offsets, weights, features, bags, paddings, means)?;
        let features = batch.features(py)?;
        let bags: Vec<(&str, IdBag<'_>)> =
            tables.iter().map(String::as_str).zip(batch.bags(&features)).collect();
        let pool = if is_bf16(out) { Self::pool::<i16> } else { Self::pool::<f32> };
        pool(self, py, &bags, out, row_stride)
    }

    /// Copy rows of tables of one group, `counts` ids of each, table after table.
    fn rows_of(
        &self,
        py: Python<'_>,
        tables: Vec<String>,
        ids: &Bound<'_, PyAny>,
        counts: Vec<usize>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (ids, mut out) = (id_buffer(ids)?, floats_mut(out, "out")?);
        let mut rest = ids.ids();
        if tables.len() != counts.len() || counts.iter().sum::<usize>() != rest.len() {
            return Err(invalid(py, format!("counts {counts:?} must add up to the {} ids", rest.len())));
        }
        let asked: Vec<(&str, &[u64])> = tables
            .iter()
            .zip(&counts)
            .map(|(table, &count)| {
                let (of_table, after) = rest.split_at(count);
                rest = after;
                (table.as_str(), of_table)
            })
            .collect();
        let (rows, out) = (self.rows(py)?, out.values_mut());
        py.detach(|| rows.get(&asked, out, Instant::now() + self.wait))
            .map(drop)
            .map_err(|error| host_raised(py, &error))
    }

    /// Disconnect when the calls of other threads are over.
    fn close(&self, py: Python<'_>) {
        let rows = self.rows.lock().take();
        py.detach(|| drop(rows));
    }
}

impl NodeRows {
    fn rows(&self, py: Python<'_>) -> PyResult<Arc<Rows>> {
        let closed = || exception(py, "StoreClosed", format!("{} was closed", self.url));
        self.rows.lock().clone().ok_or_else(closed)
    }

    /// As the rows of a served model.
    pub(crate) fn source(&self, py: Python<'_>) -> PyResult<RowSource> {
        Ok(RowSource::Node { rows: self.rows(py)?, wait: self.wait })
    }

    fn pool<T: FloatArray>(
        &self,
        py: Python<'_>,
        bags: &[(&str, IdBag<'_>)],
        out: &Bound<'_, PyAny>,
        row_stride: usize,
    ) -> PyResult<()>
    where
        T::Float: rowmill_host::Number,
    {
        let mut out = Buffer::<T>::write(out, "out", T::DTYPE)?;
        let (rows, out) = (self.rows(py)?, T::floats_mut(&mut out));
        // The vectors of all features lie side by side.
        let dim = row_stride / bags.len().max(1);
        let room = bags.first().map_or(0, |(_, bag)| bag.len()).saturating_mul(row_stride);
        if out.len() < room {
            return Err(invalid(py, format!("out must have {room} numbers, got {}", out.len())));
        }
        py.detach(|| rows.pool(bags, dim, out, row_stride, Instant::now() + self.wait))
            .map(drop)
            .map_err(|error| host_raised(py, &error))
    }
}
