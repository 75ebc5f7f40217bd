//! The store as the cells need it.

use std::path::Path;
use std::sync::Arc;

use rowmill_rows::{Dtype, IdRange, Initializer, StalenessBound, TableSpec};
use rowmill_store::{Store, StoreOptions, Table};

use crate::settings::{Failure, Settings};

/// Rows stored per call while loading.
const LOAD_BATCH: u64 = 1 << 16;

/// A new store in `folder` with one table.
pub(crate) fn create(settings: &Settings, folder: &Path) -> Result<(Arc<Store>, Table), Failure> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    let options = StoreOptions {
        memory: settings.memory,
        threads: settings.threads,
        seed: settings.seed,
        ..StoreOptions::default()
    };
    let store = Store::open(folder, options)?;
    let table = store.table("rows", &spec(settings))?;
    Ok((store, table))
}

fn spec(settings: &Settings) -> TableSpec {
    TableSpec {
        dim: settings.dim() as u32,
        dtype: Dtype::F32,
        optimizer: settings.optimizer.spec(),
        initializer: Initializer::Zeros,
        staleness: StalenessBound::Infinite,
        ids: IdRange::Sparse,
    }
}

/// Store every row once; the first weight of a row is its id.
pub(crate) fn load(table: &Table, rows: u64) -> Result<(), Failure> {
    let dim = table.spec().dim as usize;
    for first in (0..rows).step_by(LOAD_BATCH as usize) {
        let ids: Vec<u64> = (first..(first + LOAD_BATCH).min(rows)).collect();
        let mut values = vec![0.5; ids.len() * dim];
        for (row, &id) in values.chunks_mut(dim).zip(&ids) {
            row[0] = id as f32;
        }
        table.put(&ids, &values, None)?;
    }
    Ok(())
}
