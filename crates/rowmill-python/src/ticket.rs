//! A ticket: one training step's hold on clocks.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::errors::invalid;

/// A ticket of the store. Its clocks are released by `release` or when it is collected.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct Ticket(Mutex<Option<Arc<rowmill_store::Ticket>>>);

impl Ticket {
    pub(crate) fn new(ticket: rowmill_store::Ticket) -> Self {
        Self(Mutex::new(Some(Arc::new(ticket))))
    }

    /// The ticket, if one is given. An error if it was released.
    pub(crate) fn of(
        py: Python<'_>,
        ticket: Option<&Bound<'_, Self>>,
    ) -> PyResult<Option<Arc<rowmill_store::Ticket>>> {
        let Some(ticket) = ticket else { return Ok(None) };
        let held = ticket.get().held();
        held.map(Some).ok_or_else(|| invalid(py, "ticket was released: its step has ended"))
    }

    /// The ticket, or `None` if it was released.
    pub(crate) fn held(&self) -> Option<Arc<rowmill_store::Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[pymethods]
impl Ticket {
    /// Release all clocks. The ticket can no longer be used.
    fn release(&self, py: Python<'_>) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(held));
    }
}
