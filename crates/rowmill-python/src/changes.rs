//! Changed rows between two checkpoints.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict};
use rowmill_io::ProcessLocal;
use rowmill_store::{DirectoryVolume, IdRange, IoChoice, Keeper, Share, StoreError, Volume};

use crate::buffers::{float_bytes, id_bytes};
use crate::errors::{forked_iterator, invalid, raised};
use crate::spec::{initializer_dict, optimizer_dict};
use crate::store::Store;

/// Number of batches to read ahead.
const AHEAD: usize = 2;

/// The changes between a checkpoint and a later one, by default the last.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct Changes(pub(crate) Arc<rowmill_store::Changes>);

/// Owned copy of some changes of one table.
struct Batch {
    table: String,
    ids: Vec<u64>,
    rows: Vec<f32>,
    dim: usize,
    row_floats: usize,
    deleted: Vec<u64>,
}

/// An iterator over changed rows. A thread of its own reads them; it ends with the iterator.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct ChangedRows(ProcessLocal<Mutex<Receiver<Result<Batch, StoreError>>>>);

type Bytes<'py> = Bound<'py, PyByteArray>;
/// Item of [`ChangedRows`].
type PyBatch<'py> = (String, Bytes<'py>, Bytes<'py>, usize, usize, Bytes<'py>);

#[pymethods]
impl Changes {
    #[staticmethod]
    #[pyo3(signature = (path, since, at=None))]
    fn open(py: Python<'_>, path: PathBuf, since: u64, at: Option<u64>) -> PyResult<Self> {
        let opened = py.detach(|| {
            if !path.is_dir() {
                return Err(StoreError::Missing { location: path.display().to_string() });
            }
            let volume: Arc<dyn Volume> =
                Arc::new(DirectoryVolume::open(&path, IoChoice::Auto).map_err(StoreError::from)?);
            rowmill_store::Changes::open_at(&volume, since, at)
        });
        opened.map(|changes| Self(Arc::new(changes))).map_err(|error| raised(py, &error))
    }

    #[getter]
    fn since(&self) -> u64 {
        self.0.since()
    }

    #[getter]
    fn until(&self) -> u64 {
        self.0.until()
    }

    fn tables<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let dict = |table: rowmill_store::ChangedTable| {
            let out = PyDict::new(py);
            out.set_item("name", table.name)?;
            out.set_item("dim", table.spec.dim)?;
            out.set_item("dtype", table.spec.dtype.name())?;
            out.set_item("optimizer", optimizer_dict(py, &table.spec.optimizer)?)?;
            out.set_item("initializer", initializer_dict(py, &table.spec.initializer)?)?;
            let dense_rows = match table.spec.ids {
                IdRange::Sparse => None,
                IdRange::Dense { rows } => Some(rows),
            };
            out.set_item("dense_rows", dense_rows)?;
            out.set_item("steps", table.steps)?;
            out.set_item("rows", table.rows)?;
            Ok(out)
        };
        self.0.tables().into_iter().map(dict).collect()
    }

    fn rows(&self, batch: usize) -> PyResult<ChangedRows> {
        let (sender, receiver) = sync_channel(AHEAD);
        let changes = Arc::clone(&self.0);
        std::thread::Builder::new()
            .name("rowmill-changes".into())
            .spawn(move || visit(&changes, batch, &sender))?;
        Ok(ChangedRows(ProcessLocal::new(Mutex::new(receiver))))
    }

    /// Apply the changes to `store`. Returns the numbers of rows written and deleted.
    fn replay(&self, py: Python<'_>, store: &Bound<'_, Store>) -> PyResult<(u64, u64)> {
        let target = &store.get().0;
        let replayed = py.detach(|| self.0.replay(target)).map_err(|error| raised(py, &error))?;
        Ok((replayed.written, replayed.deleted))
    }

    /// Copy to `store` the rows that belong to `rank` of `ranks`. `keepers` maps each table's name to which
    /// ranks take its rows: `("hash", category number of the owner hash)`, `("rank", rank)`, `("every", 0)` or
    /// `("copied", 0)`. Returns the number of rows copied.
    fn replay_share(
        &self,
        py: Python<'_>,
        store: &Bound<'_, Store>,
        rank: u32,
        ranks: u32,
        counters: bool,
        keepers: HashMap<String, (String, u64)>,
    ) -> PyResult<u64> {
        let (target, share) = (&store.get().0, Share { rank, ranks, counters });
        let mut by_name = HashMap::new();
        for name in self.0.tables().into_iter().map(|table| table.name) {
            let keeper = keepers.get(&name).and_then(|(kind, number)| match kind.as_str() {
                "hash" => Some(Keeper::Hash(*number)),
                "rank" => u32::try_from(*number).ok().map(Keeper::Rank),
                "every" => Some(Keeper::Every),
                "copied" => Some(Keeper::Copied),
                _ => None,
            });
            let Some(keeper) = keeper else {
                return Err(invalid(
                    py,
                    format!(
                        "keepers must have hash, rank, every or copied for every table, got {:?} for {name:?}",
                        keepers.get(&name)
                    ),
                ));
            };
            by_name.insert(name, keeper);
        }
        if rank >= ranks || self.0.since() > 0 {
            return Err(invalid(
                py,
                format!(
                    "a share needs since=0 and rank < ranks, got since={} and rank {rank} of {ranks}",
                    self.0.since()
                ),
            ));
        }
        py.detach(|| self.0.replay_share(target, share, &|name| by_name[name]))
            .map_err(|error| raised(py, &error))
    }

    fn attachment<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = py.detach(|| self.0.attachment(name)).map_err(|error| raised(py, &error))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }
}

fn visit(changes: &rowmill_store::Changes, batch: usize, sender: &SyncSender<Result<Batch, StoreError>>) {
    // A send fails once the iterator is dropped; an error then has no receiver either.
    let end = changes.for_each(batch, |changed| {
        let batch = Batch {
            table: changed.table.to_owned(),
            ids: changed.ids.to_vec(),
            rows: changed.rows.to_vec(),
            dim: changed.dim,
            row_floats: changed.row_floats,
            deleted: changed.deleted.to_vec(),
        };
        sender.send(Ok(batch)).is_ok()
    });
    if let Err(error) = end {
        let _ = sender.send(Err(error));
    }
}

#[pymethods]
impl ChangedRows {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// The next batch: `(table, ids, rows, row_floats, dim, deleted)`. `ids` and `deleted` are int64 bytes.
    /// `rows` is float32 `[len(ids), row_floats]` as bytes: `dim` weights, then optimizer state.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<PyBatch<'py>>> {
        if !self.0.is_here() {
            return Err(forked_iterator(py));
        }
        let next = py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).recv());
        match next {
            Err(_) => Ok(None),
            Ok(Err(error)) => Err(raised(py, &error)),
            Ok(Ok(Batch { table, ids, rows, dim, row_floats, deleted })) => Ok(Some((
                table,
                id_bytes(py, &ids),
                float_bytes(py, &rows),
                row_floats,
                dim,
                id_bytes(py, &deleted),
            ))),
        }
    }
}
