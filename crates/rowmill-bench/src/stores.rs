//! Stores and tables for the cells.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_rows::{IdRange, Initializer, StalenessBound, TableSpec};
use rowmill_store::{Store, StoreOptions, Table};

use crate::settings::{Failure, Settings};

/// Rows per call while loading.
pub(crate) const LOAD_BATCH: u64 = 1 << 16;
/// A store counts as settled after this time without writes or compactions.
const QUIET: Duration = Duration::from_millis(100);
/// Longest wait for a store to settle.
const SETTLE: Duration = Duration::from_mins(1);

/// A new store in `folder`.
pub(crate) fn create_store(settings: &Settings, folder: &Path) -> Result<Arc<Store>, Failure> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    open_store(settings, folder)
}

/// The store in `folder`.
pub(crate) fn open_store(settings: &Settings, folder: &Path) -> Result<Arc<Store>, Failure> {
    let options = StoreOptions {
        memory: settings.memory,
        threads: settings.threads,
        seed: settings.seed,
        ..StoreOptions::default()
    };
    Ok(Store::open(folder, options)?)
}

/// A new store in `folder` with one table that keeps no clocks.
pub(crate) fn create(settings: &Settings, folder: &Path) -> Result<(Arc<Store>, Table), Failure> {
    let store = create_store(settings, folder)?;
    let table = store.table("rows", &spec(settings, StalenessBound::Infinite))?;
    Ok((store, table))
}

/// The table spec of the settings.
pub(crate) fn spec(settings: &Settings, staleness: StalenessBound) -> TableSpec {
    TableSpec {
        dim: settings.dim() as u32,
        dtype: settings.dtype,
        optimizer: settings.optimizer.spec(),
        initializer: Initializer::Zeros,
        staleness,
        ids: IdRange::Sparse,
        eviction: None,
        admission: None,
    }
}

/// Store every row once.
pub(crate) fn load(table: &Table, rows: u64) -> Result<(), Failure> {
    let dim = table.spec().dim as usize;
    for first in (0..rows).step_by(LOAD_BATCH as usize) {
        let ids: Vec<u64> = (first..(first + LOAD_BATCH).min(rows)).collect();
        let mut values = vec![0.0; ids.len() * dim];
        for (row, &id) in values.chunks_mut(dim).zip(&ids) {
            weights(id, row);
        }
        table.put(&ids, &values, None)?;
    }
    Ok(())
}

/// Initial weights in every engine: the first weight of a row is its id.
pub(crate) fn weights(id: u64, row: &mut [f32]) {
    row.fill(0.5);
    row[0] = id as f32;
}

/// Wait until background writes and compactions end. Returns how long they lasted.
pub(crate) fn settle(store: &Store) -> Result<Duration, Failure> {
    let work = || {
        let stats = store.stats();
        (stats.device_bytes_written, stats.compactions)
    };
    let begin = Instant::now();
    let mut before = work();
    loop {
        let lasted = begin.elapsed();
        std::thread::sleep(QUIET);
        let now = work();
        if now == before {
            return Ok(lasted);
        }
        if lasted > SETTLE {
            return Err(format!("the store has not settled after {SETTLE:?}").into());
        }
        before = now;
    }
}
