//! Scan all rows of a table in batches.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use rowmill_io::ProcessLocal;
use rowmill_store::StoreError;

use crate::buffers::{float_bytes, id_bytes};
use crate::errors::{forked_iterator, raised};

/// Number of batches to read ahead.
const AHEAD: usize = 2;

type Batch = Result<(Vec<u64>, Vec<f32>), StoreError>;

/// An iterator over batches. A thread of its own reads the rows; it ends with the iterator.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct Scan(ProcessLocal<Mutex<Receiver<Batch>>>);

impl Scan {
    pub(crate) fn start(table: rowmill_store::Table, batch: usize) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(AHEAD);
        std::thread::Builder::new()
            .name("rowmill-scan".into())
            .spawn(move || visit(&table, batch, &sender))?;
        Ok(Self(ProcessLocal::new(Mutex::new(receiver))))
    }
}

fn visit(table: &rowmill_store::Table, batch: usize, sender: &SyncSender<Batch>) {
    // A send fails once the iterator is dropped; an error then has no receiver either.
    let end = table.scan(batch, |ids, weights| sender.send(Ok((ids.to_vec(), weights.to_vec()))).is_ok());
    if let Err(error) = end {
        let _ = sender.send(Err(error));
    }
}

#[pymethods]
impl Scan {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Ids (int64) and weights (float32) of the next rows, as bytes.
    fn __next__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyByteArray>, Bound<'py, PyByteArray>)>> {
        if !self.0.is_here() {
            return Err(forked_iterator(py));
        }
        let next = py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).recv());
        match next {
            Err(_) => Ok(None),
            Ok(Err(error)) => Err(raised(py, &error)),
            Ok(Ok((ids, weights))) => Ok(Some((id_bytes(py, &ids), float_bytes(py, &weights)))),
        }
    }
}
