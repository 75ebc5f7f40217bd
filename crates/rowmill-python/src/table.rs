//! A table. Methods take a batch of ids.

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};
use rowmill_store::{Destination, IdRange, StalenessBound};

use crate::buffers::{floats, floats_mut, id_bytes, ids as id_buffer};
use crate::errors::{invalid, raised};
use crate::queued_get::QueuedGet;
use crate::scan::Scan;
use crate::spec::{admission_dict, eviction_dict, initializer_dict, optimizer_dict};
use crate::ticket::Ticket;

/// A table of a store.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct Table(pub(crate) rowmill_store::Table);

/// Parse the destination of announced rows: "buffer" or "cache".
pub(crate) fn destination(py: Python<'_>, into: &str, steps: i64) -> PyResult<Destination> {
    if steps < 1 {
        return Err(invalid(py, format!("steps must be at least 1 (the next step), got {steps}")));
    }
    match into {
        "buffer" => Ok(Destination::Buffer { steps: steps.unsigned_abs() }),
        "cache" => Ok(Destination::Cache),
        other => Err(invalid(py, format!("into must be \"buffer\" or \"cache\", got {other:?}"))),
    }
}

#[pymethods]
impl Table {
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn dim(&self) -> u32 {
        self.0.spec().dim
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.spec().dtype.name()
    }

    #[getter]
    fn dense_rows(&self) -> Option<u64> {
        match self.0.spec().ids {
            IdRange::Sparse => None,
            IdRange::Dense { rows } => Some(rows),
        }
    }

    #[getter]
    fn staleness_bound(&self) -> Option<u8> {
        match self.0.spec().staleness {
            StalenessBound::Infinite => None,
            StalenessBound::Steps(bound) => Some(bound),
        }
    }

    #[getter]
    fn group(&self) -> u32 {
        self.0.group_number()
    }

    #[getter]
    fn category(&self) -> u32 {
        self.0.category()
    }

    #[getter]
    fn optimizer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        optimizer_dict(py, &self.0.spec().optimizer)
    }

    #[getter]
    fn initializer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        initializer_dict(py, &self.0.spec().initializer)
    }

    #[getter]
    fn eviction<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.0.spec().eviction.as_ref().map(|eviction| eviction_dict(py, eviction)).transpose()
    }

    #[getter]
    fn admission<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.0.spec().admission.as_ref().map(|admission| admission_dict(py, admission)).transpose()
    }

    #[getter]
    fn state_floats(&self) -> usize {
        self.0.state_floats()
    }

    #[getter]
    fn row_bytes(&self) -> usize {
        self.0.row_bytes()
    }

    #[getter]
    fn steps(&self) -> u64 {
        self.0.steps()
    }

    fn set_steps(&self, py: Python<'_>, steps: u64) -> PyResult<()> {
        self.0.set_steps(steps).map_err(|error| raised(py, &error))
    }

    fn len(&self, py: Python<'_>) -> PyResult<usize> {
        self.check_process(py)?;
        Ok(py.detach(|| self.0.len()))
    }

    fn scan(&self, py: Python<'_>, batch: usize) -> PyResult<Scan> {
        self.check_process(py)?;
        // Errors of a closed store are raised with the first batch.
        Scan::start(self.0.clone(), batch)
            .map_err(|error| invalid(py, format!("cannot start a scan: {error}")))
    }

    fn hottest(&self, py: Python<'_>, count: usize) -> PyResult<Vec<(i64, u64)>> {
        self.check_process(py)?;
        let hottest = py.detach(|| self.0.hottest(count));
        Ok(hottest.into_iter().map(|(id, lookups)| (id as i64, lookups)).collect())
    }

    fn contains<'py>(&self, py: Python<'py>, ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyByteArray>> {
        let ids = id_buffer(ids)?;
        let found = py.detach(|| self.0.contains(ids.ids())).map_err(|error| raised(py, &error))?;
        let bytes: Vec<u8> = found.into_iter().map(u8::from).collect();
        Ok(PyByteArray::new(py, &bytes))
    }

    fn get(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        ticket: Option<&Bound<'_, Ticket>>,
    ) -> PyResult<()> {
        let (ids, mut out) = (id_buffer(ids)?, floats_mut(out, "out")?);
        // If another thread has already ended this step, read outside a step.
        let ticket = ticket.and_then(|ticket| ticket.get().held());
        py.detach(|| match ticket {
            Some(ticket) => self.0.get_in_step(ids.ids(), out.values_mut(), &ticket),
            None => self.0.get(ids.ids(), out.values_mut()),
        })
        .map_err(|error| raised(py, &error))
    }

    fn get_or_init(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        ticket: Option<&Bound<'_, Ticket>>,
    ) -> PyResult<()> {
        let (ids, mut out) = (id_buffer(ids)?, floats_mut(out, "out")?);
        let ticket = Ticket::of(py, ticket)?;
        py.detach(|| self.0.get_or_init(ids.ids(), out.values_mut(), ticket.as_deref()))
            .map_err(|error| raised(py, &error))
    }

    fn get_later(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        ticket: &Bound<'_, Ticket>,
    ) -> PyResult<QueuedGet> {
        let ids = id_buffer(ids)?;
        let ticket = Ticket::of(py, Some(ticket))?.expect("one was given");
        let get = py.detach(|| self.0.get_later(ids.ids(), &ticket)).map_err(|error| raised(py, &error))?;
        Ok(QueuedGet::new(get))
    }

    fn put(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        ticket: Option<&Bound<'_, Ticket>>,
    ) -> PyResult<()> {
        let (ids, values) = (id_buffer(ids)?, floats(values, "values")?);
        let ticket = Ticket::of(py, ticket)?;
        py.detach(|| self.0.put(ids.ids(), values.values(), ticket.as_deref()))
            .map_err(|error| raised(py, &error))
    }

    fn rmw(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        gradients: &Bound<'_, PyAny>,
        lr: f32,
        ticket: Option<&Bound<'_, Ticket>>,
    ) -> PyResult<()> {
        let (ids, gradients) = (id_buffer(ids)?, floats(gradients, "gradients")?);
        let ticket = Ticket::of(py, ticket)?;
        py.detach(|| self.0.rmw(ids.ids(), gradients.values(), Some(lr), ticket.as_deref()))
            .map_err(|error| raised(py, &error))
    }

    fn delete(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<usize> {
        let ids = id_buffer(ids)?;
        py.detach(|| self.0.delete(ids.ids())).map_err(|error| raised(py, &error))
    }

    fn evict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        let ids = py.detach(|| self.0.evict()).map_err(|error| raised(py, &error))?;
        Ok(id_bytes(py, &ids))
    }

    fn set_scores(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, scores: &Bound<'_, PyAny>) -> PyResult<()> {
        let (ids, scores) = (id_buffer(ids)?, floats(scores, "scores")?);
        py.detach(|| self.0.set_scores(ids.ids(), scores.values())).map_err(|error| raised(py, &error))
    }

    fn get_state(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let (ids, mut out) = (id_buffer(ids)?, floats_mut(out, "out")?);
        py.detach(|| self.0.get_state(ids.ids(), out.values_mut())).map_err(|error| raised(py, &error))
    }

    fn put_state(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let (ids, state) = (id_buffer(ids)?, floats(state, "state")?);
        py.detach(|| self.0.put_state(ids.ids(), state.values())).map_err(|error| raised(py, &error))
    }
}

impl Table {
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.0.store().check_process().map_err(|error| raised(py, &error))
    }
}
