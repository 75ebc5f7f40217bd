//! The store and its fused lookups.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes, PyDict};
use rowmill_store::{AskedRows, FeedOptions, IdBag, IoChoice, StoreOptions};

use crate::batch::Batch;
use crate::buffers::{
    Buffer, FloatArray, float_bytes, floats, floats_mut, id_bytes, ids as id_buffer, is_bf16, numbers,
};
use crate::changes::Changes;
use crate::errors::{invalid, raised, remote_raised};
use crate::interrupt::interruptible;
use crate::spec::{NewRules, read_changes, read_spec};
use crate::stats::{checkpoint_dict, push_dict, stats_dict};
use crate::table::{Table, destination};
use crate::ticket::Ticket;
use crate::versions::{new_version, version_dict};

/// An open store.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct Store(pub(crate) Arc<rowmill_store::Store>);

/// State of a fused lookup that its backward needs.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct Lookup(rowmill_store::Lookup);

type Rows<'py> = (Bound<'py, PyByteArray>, Bound<'py, PyByteArray>);

#[pymethods]
impl Store {
    #[staticmethod]
    #[pyo3(signature = (path, *, memory, row_memory, threads, seed, wait_deadline_s, create, read_only, at, version, history, feed_bytes, feed_interval_s, feed_waiting, io, alter))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        memory: u64,
        row_memory: Option<u64>,
        threads: usize,
        seed: u64,
        wait_deadline_s: f64,
        create: bool,
        read_only: bool,
        at: Option<u64>,
        version: Option<String>,
        history: u64,
        feed_bytes: Option<u64>,
        feed_interval_s: f64,
        feed_waiting: u64,
        io: &str,
        alter: Vec<NewRules<'_>>,
    ) -> PyResult<Self> {
        let wait_deadline = Duration::try_from_secs_f64(wait_deadline_s).map_err(|error| {
            invalid(
                py,
                format!("wait_deadline_s must be a number of seconds >= 0, got {wait_deadline_s}: {error}"),
            )
        })?;
        let interval = Duration::try_from_secs_f64(feed_interval_s).map_err(|error| {
            invalid(
                py,
                format!("feed_interval_s must be a number of seconds >= 0, got {feed_interval_s}: {error}"),
            )
        })?;
        let io = match io {
            "auto" => IoChoice::Auto,
            "pread" => IoChoice::Pread,
            other => return Err(invalid(py, format!("io must be \"auto\" or \"pread\", got {other:?}"))),
        };
        let options = StoreOptions {
            memory,
            row_memory,
            threads,
            seed,
            wait_deadline,
            create,
            read_only,
            at,
            version,
            history,
            feed: feed_bytes.map(|bytes| FeedOptions { bytes, interval, waiting: feed_waiting }),
            io,
            alter: read_changes(py, alter)?,
            ..StoreOptions::default()
        };
        let store =
            py.detach(|| rowmill_store::Store::open(&path, options)).map_err(|error| raised(py, &error))?;
        Ok(Self(store))
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.0.seed()
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.0.is_read_only()
    }

    #[getter]
    fn event_time(&self) -> Option<u64> {
        self.0.event_time()
    }

    #[pyo3(signature = (name, *, dim, dtype, optimizer, initializer, staleness_bound, dense_rows, eviction, admission))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    fn table(
        &self,
        py: Python<'_>,
        name: &str,
        dim: i64,
        dtype: &str,
        optimizer: &Bound<'_, PyDict>,
        initializer: &Bound<'_, PyDict>,
        staleness_bound: Option<i64>,
        dense_rows: Option<i64>,
        eviction: Option<&Bound<'_, PyDict>>,
        admission: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Table> {
        let spec =
            read_spec(dim, dtype, optimizer, initializer, staleness_bound, dense_rows, eviction, admission)?;
        py.detach(|| self.0.table(name, &spec)).map(Table).map_err(|error| raised(py, &error))
    }

    fn open_table(&self, py: Python<'_>, name: &str) -> PyResult<Table> {
        py.detach(|| self.0.open_table(name)).map(Table).map_err(|error| raised(py, &error))
    }

    /// Raise `StoreForked` in a forked child of the process that opened the store.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.0.check_process().map_err(|error| raised(py, &error))
    }

    fn table_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.check_process(py)?;
        Ok(py.detach(|| self.0.table_names()))
    }

    fn ticket(&self, py: Python<'_>, event_time: Option<u64>) -> PyResult<Ticket> {
        py.detach(|| self.0.ticket_at(event_time)).map(Ticket::new).map_err(|error| raised(py, &error))
    }

    #[allow(clippy::too_many_arguments, reason = "one argument per part of a batch and per option")]
    fn lookup(
        &self,
        py: Python<'_>,
        tables: Vec<Bound<'_, Table>>,
        ids: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        features: Vec<usize>,
        bags: usize,
        paddings: Vec<Option<i64>>,
        means: Vec<bool>,
        out: &Bound<'_, PyAny>,
        row_stride: usize,
        ticket: Option<&Bound<'_, Ticket>>,
        training: bool,
    ) -> PyResult<Option<Lookup>> {
        let batch = Batch::read(py, tables.len(), ids, offsets, weights, features, bags, paddings, means)?;
        let features = batch.features(py)?;
        let tables = tables.iter().map(|table| &table.get().0);
        let bags: Vec<(&rowmill_store::Table, IdBag<'_>)> = tables.zip(batch.bags(&features)).collect();
        let ticket = Ticket::of(py, ticket)?;
        let pool = if is_bf16(out) { Self::pool::<i16> } else { Self::pool::<f32> };
        pool(self, py, &bags, out, row_stride, ticket.as_deref(), training)
    }

    /// Look up single rows of many tables. `ids` holds the tables' ids one table after the other, `counts` of
    /// each. `times` (int32) says how often each id was requested, for statistics.
    #[allow(clippy::too_many_arguments, reason = "one argument per array")]
    fn lookup_rows(
        &self,
        py: Python<'_>,
        tables: Vec<Bound<'_, Table>>,
        ids: &Bound<'_, PyAny>,
        counts: Vec<usize>,
        times: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        ticket: Option<&Bound<'_, Ticket>>,
        training: bool,
    ) -> PyResult<Option<Lookup>> {
        let (ids, times, mut out) = (id_buffer(ids)?, numbers(times, "times")?, floats_mut(out, "out")?);
        let (mut ids, mut times) = (ids.ids(), times.numbers());
        let total = counts.iter().fold(0_usize, |sum, &count| sum.saturating_add(count));
        if [tables.len(), ids.len(), times.len()] != [counts.len(), total, total] {
            return Err(invalid(
                py,
                format!(
                    "counts must have one entry per table ({}), got {}; ids and times must have {total} entries, got {} and {}",
                    tables.len(),
                    counts.len(),
                    ids.len(),
                    times.len()
                ),
            ));
        }
        let asked: Vec<AskedRows<'_>> = tables
            .iter()
            .zip(counts)
            .map(|(table, count)| {
                let (of_table, of_ids);
                (of_table, ids) = ids.split_at(count);
                (of_ids, times) = times.split_at(count);
                AskedRows { table: &table.get().0, ids: of_table, times: of_ids }
            })
            .collect();
        let (ticket, out) = (Ticket::of(py, ticket)?, out.values_mut());
        py.detach(|| {
            let ticket = ticket.as_deref();
            if training {
                self.0.lookup_rows(&asked, out, ticket).map(Lookup).map(Some)
            } else {
                self.0.evaluate_rows(&asked, out, ticket).map(|()| None)
            }
        })
        .map_err(|error| raised(py, &error))
    }

    fn apply(
        &self,
        py: Python<'_>,
        lookup: &Bound<'_, Lookup>,
        gradients: &Bound<'_, PyAny>,
        row_stride: usize,
        rates: Vec<f32>,
        ticket: Option<&Bound<'_, Ticket>>,
    ) -> PyResult<()> {
        let gradients = floats(gradients, "gradients")?;
        let (ticket, lookup) = (Ticket::of(py, ticket)?, &lookup.get().0);
        py.detach(|| self.0.apply(lookup, gradients.values(), row_stride, &rates, ticket.as_deref()))
            .map_err(|error| raised(py, &error))
    }

    fn row_gradients<'py>(
        &self,
        py: Python<'py>,
        lookup: &Bound<'py, Lookup>,
        gradients: &Bound<'py, PyAny>,
        row_stride: usize,
    ) -> PyResult<Vec<Rows<'py>>> {
        let gradients = floats(gradients, "gradients")?;
        let lookup = &lookup.get().0;
        let rows = py
            .detach(|| self.0.row_gradients(lookup, gradients.values(), row_stride))
            .map_err(|error| raised(py, &error))?;
        Ok(rows.iter().map(|rows| (id_bytes(py, &rows.ids), float_bytes(py, &rows.values))).collect())
    }

    fn lookahead(
        &self,
        py: Python<'_>,
        tables: Vec<Bound<'_, Table>>,
        ids: Vec<Bound<'_, PyAny>>,
        into: &str,
        steps: i64,
    ) -> PyResult<bool> {
        let destination = destination(py, into, steps)?;
        if tables.len() != ids.len() {
            return Err(invalid(
                py,
                format!("ids must have one array per table ({}), got {}", tables.len(), ids.len()),
            ));
        }
        let ids = ids.iter().map(id_buffer).collect::<PyResult<Vec<_>>>()?;
        let pairs: Vec<_> = tables.iter().zip(&ids).map(|(table, ids)| (&table.get().0, ids.ids())).collect();
        py.detach(|| self.0.lookahead(&pairs, destination)).map_err(|error| raised(py, &error))
    }

    fn lookahead_pending(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_process(py)?;
        Ok(py.detach(|| self.0.lookahead_pending()))
    }

    #[pyo3(signature = (attachments, version=None))]
    fn checkpoint<'py>(
        &self,
        py: Python<'py>,
        attachments: Vec<(String, PyBackedBytes)>,
        version: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let version = version.map(new_version).transpose()?;
        let info = py
            .detach(|| self.0.checkpoint_as(&borrowed(&attachments), version.as_ref()))
            .map_err(|error| raised(py, &error))?;
        checkpoint_dict(py, &info)
    }

    #[pyo3(signature = (attachments, version=None))]
    fn prepare<'py>(
        &self,
        py: Python<'py>,
        attachments: Vec<(String, PyBackedBytes)>,
        version: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let version = version.map(new_version).transpose()?;
        let info = py
            .detach(|| self.0.prepare_as(&borrowed(&attachments), version.as_ref()))
            .map_err(|error| raised(py, &error))?;
        checkpoint_dict(py, &info)
    }

    fn commit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = py.detach(|| self.0.commit()).map_err(|error| raised(py, &error))?;
        checkpoint_dict(py, &info)
    }

    fn versions<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let found = py.detach(|| self.0.versions()).map_err(|error| raised(py, &error))?;
        found.iter().map(|version| version_dict(py, version)).collect()
    }

    fn kept_versions(&self, py: Python<'_>) -> PyResult<Vec<(u64, String)>> {
        py.detach(|| self.0.kept_versions()).map_err(|error| raised(py, &error))
    }

    fn push<'py>(&self, py: Python<'py>, url: &str, keep: usize) -> PyResult<Bound<'py, PyDict>> {
        let info = interruptible(py, |interrupted| {
            let remote = rowmill_remote::Remote::open(url)?;
            rowmill_remote::push(&self.0.pin_checkpoint()?, &remote, keep, interrupted)
        })?
        .map_err(|error| remote_raised(py, &error))?;
        push_dict(py, &info)
    }

    fn changes(&self, py: Python<'_>, since: u64) -> PyResult<Changes> {
        let changes = py.detach(|| self.0.changes(since)).map_err(|error| raised(py, &error))?;
        Ok(Changes(Arc::new(changes)))
    }

    fn publish(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.publish()).map_err(|error| raised(py, &error))
    }

    fn attachment<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = py.detach(|| self.0.attachment(name)).map_err(|error| raised(py, &error))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    fn attachment_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.check_process(py)?;
        // A running checkpoint may hold the lock that this call needs, so the GIL is released.
        Ok(py.detach(|| self.0.attachment_names()))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_process(py)?;
        let stats = py.detach(|| self.0.stats());
        stats_dict(py, &stats)
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        self.check_process(py)?;
        Ok(py.detach(|| self.0.metrics()))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

impl Store {
    /// Pool bags into `out`, which is float32 or bfloat16 bits as int16.
    #[allow(clippy::too_many_arguments, reason = "the arguments of the store's call")]
    fn pool<T: FloatArray>(
        &self,
        py: Python<'_>,
        bags: &[(&rowmill_store::Table, IdBag<'_>)],
        out: &Bound<'_, PyAny>,
        row_stride: usize,
        ticket: Option<&rowmill_store::Ticket>,
        training: bool,
    ) -> PyResult<Option<Lookup>> {
        let mut out = Buffer::<T>::write(out, "out", T::DTYPE)?;
        let out = T::floats_mut(&mut out);
        py.detach(|| {
            if training {
                self.0.lookup(bags, out, row_stride, ticket).map(Lookup).map(Some)
            } else {
                self.0.evaluate(bags, out, row_stride, ticket).map(|()| None)
            }
        })
        .map_err(|error| raised(py, &error))
    }
}

fn borrowed(attachments: &[(String, PyBackedBytes)]) -> Vec<(&str, &[u8])> {
    attachments.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect()
}
