//! Stores whose rows tests serve, and damage on their disks.

use std::path::Path;
use std::sync::Arc;

use rowmill_store::{
    Dtype, IdRange, Initializer, OptimizerSpec, StalenessBound, Store, StoreOptions, TableSpec,
};
use rowmill_testkit::Rng64;

/// Rows of dense tables.
pub(crate) const DENSE_ROWS: u64 = 1000;

pub(crate) fn spec(dim: u32, dtype: Dtype, ids: IdRange) -> TableSpec {
    TableSpec {
        dim,
        dtype,
        optimizer: OptimizerSpec::Sgd { lr: 0.5 },
        initializer: Initializer::Uniform { low: -1.0, high: 1.0 },
        staleness: StalenessBound::Steps(0),
        ids,
        eviction: None,
        admission: None,
    }
}

fn options() -> StoreOptions {
    StoreOptions { memory: 32 << 20, threads: 2, seed: 7, ..StoreOptions::default() }
}

/// Write a store whose tables have rows for half of the ids below [`DENSE_ROWS`], and open it read-only.
pub(crate) fn store(folder: &Path, tables: &[(&str, TableSpec)]) -> Arc<Store> {
    let writer = Store::open(folder, options()).unwrap();
    let mut rng = Rng64::new(1);
    for (name, spec) in tables {
        let table = writer.table(name, spec).unwrap();
        let ids: Vec<u64> = (0..DENSE_ROWS).step_by(2).collect();
        let values: Vec<f32> =
            (0..ids.len() * spec.dim as usize).map(|_| rng.below(2000) as f32 / 1000.0 - 1.0).collect();
        table.put(&ids, &values, None).unwrap();
    }
    writer.checkpoint(&[]).unwrap();
    writer.close();
    drop(writer);
    open(folder)
}

fn open(folder: &Path) -> Arc<Store> {
    Store::open(folder, StoreOptions { read_only: true, create: false, ..options() }).unwrap()
}

/// Damage the block with a row of a bf16 table on disk, and open the store again. Returns the ids whose rows cannot be read.
pub(crate) fn damage(store: Arc<Store>, folder: &Path, table: &str, id: u64) -> (Arc<Store>, Vec<u64>) {
    let table_of = |store: &Arc<Store>| store.open_table(table).unwrap();
    let group = table_of(&store).group_number();
    let dim = table_of(&store).spec().dim as usize;
    let mut row = vec![0.0_f32; dim];
    table_of(&store).get(&[id], &mut row).unwrap();
    let bytes: Vec<u8> =
        row.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect();
    store.close();
    drop(store);
    let log = folder.join(format!("group-{group}.log"));
    let mut content = std::fs::read(&log).unwrap();
    let at = content.windows(bytes.len()).position(|window| window == bytes).expect("the log has the row");
    content[at] ^= 1;
    std::fs::write(&log, content).unwrap();
    let store = open(folder);
    let is_damaged = |id: &u64| table_of(&store).get(&[*id], &mut vec![0.0; dim]).is_err();
    let damaged: Vec<u64> = (0..DENSE_ROWS).step_by(2).filter(is_damaged).collect();
    assert!(damaged.contains(&id) && damaged.len() < DENSE_ROWS as usize / 2, "{damaged:?}");
    (store, damaged)
}
