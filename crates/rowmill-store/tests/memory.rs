//! Memory and device traffic, as the kernel counts them.
//!
//! What could break: the store holds its budget by its own count while the process grows; reads go through
//! the page cache, which is memory that nobody budgets; an incremental checkpoint writes everything. So the
//! figures here come from the kernel's accounts of this process, and the bytes of a checkpoint from what it
//! changed. The tests take turns: the accounts are those of the whole process.

mod common;

use std::sync::Mutex;

use common::*;
use rowmill_store::*;
use rowmill_testkit::{Rng64, disk_read_bytes, resident_bytes};

static TURN: Mutex<()> = Mutex::new(());

fn options(memory: u64) -> StoreOptions {
    StoreOptions { memory, ..common::options(None) }
}

fn table(store: &std::sync::Arc<Store>) -> Table {
    store.table("t", &TableSpec { staleness: StalenessBound::Infinite, ..spec(128, SGD) }).unwrap()
}

#[test]
fn the_process_stays_within_the_budget_while_the_store_outgrows_it() {
    const BUDGET: u64 = 64 << 20;
    /// Stacks, the test's own batches, what the allocator keeps.
    const BESIDE: u64 = 12 << 20;
    let _turn = TURN.lock();
    let Some(before) = resident_bytes() else {
        eprintln!("skipped: this kernel does not tell resident memory");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), options(BUDGET)).unwrap();
    let table = table(&store);
    let mut grown = 0;
    let mut rng = Rng64::new(1);
    for part in 0..20_u64 {
        put_numbered(&table, part * 20_000, (part + 1) * 20_000);
        let ids: Vec<u64> = (0..4000).map(|_| rng.below((part + 1) * 20_000)).collect();
        table.rmw(&ids, &vec![0.0; ids.len() * 128], None, None).unwrap();
        if part % 8 == 7 {
            store.checkpoint(&[]).unwrap();
        }
        grown = grown.max(resident_bytes().unwrap().saturating_sub(before));
    }
    let stats = store.stats();
    assert!(stats.device_live_bytes > 2 * BUDGET, "{stats:?}");
    assert!(
        grown <= BUDGET + BUDGET / 20 + BESIDE,
        "grew by {} MiB with a budget of {} MiB: {stats:?}",
        grown >> 20,
        BUDGET >> 20
    );
    let counted = stats.index_bytes + stats.row_bytes + stats.overhead_bytes + stats.buffer_bytes;
    assert!(counted <= BUDGET, "{stats:?}");
    assert!(grown >= BUDGET / 2, "only {} MiB of the budget are used", grown >> 20);
}

#[test]
fn blocks_read_are_disk_reads() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let store =
        Store::open(folder.path(), StoreOptions { row_memory: Some(1 << 20), ..options(32 << 20) }).unwrap();
    let table = table(&store);
    put_numbered(&table, 0, 50_000);
    store.checkpoint(&[]).unwrap();
    let io = store.stats().io;
    let (true, Some(before)) = (io.contains("O_DIRECT") && !io.contains("pread"), disk_read_bytes()) else {
        eprintln!("skipped: {io} in {}, or this kernel tells no disk reads", folder.path().display());
        return;
    };
    let blocks_before = store.stats().device_blocks_read;
    let mut rng = Rng64::new(2);
    let mut rows = vec![0.0; 500 * 128];
    for _ in 0..20 {
        let ids: Vec<u64> = (0..500).map(|_| rng.below(50_000)).collect();
        table.get(&ids, &mut rows).unwrap();
        assert!(ids.iter().zip(rows.chunks(128)).all(|(&id, row)| row == [id as f32; 128]));
    }
    let read = disk_read_bytes().unwrap() - before;
    let counted = (store.stats().device_blocks_read - blocks_before) * 4096;
    assert!(counted > 10 << 20, "{counted}");
    assert!(read >= counted * 9 / 10 && read <= counted * 13 / 10, "{read} bytes read, {counted} counted");
}

#[test]
fn a_checkpoint_writes_what_changed() {
    const ROWS: u64 = 40_000;
    let _turn = TURN.lock();
    let store = open(&MemoryVolume::new(), &options(64 << 20));
    let table = table(&store);
    put_numbered(&table, 0, ROWS);
    let bytes = ROWS * 512;
    let first = store.checkpoint(&[]).unwrap();
    assert!(first.rows_saved <= ROWS && first.file_bytes > 0);
    assert!(store.stats().device_bytes_written >= bytes);
    // All rows were changes of the index at first; it is written out as a whole once.
    assert!(store.checkpoint(&[]).unwrap().file_bytes < ROWS * 13);
    let mut rng = Rng64::new(3);
    for _ in 0..3 {
        let mut ids: Vec<u64> = (0..ROWS / 100).map(|_| rng.below(ROWS)).collect();
        ids.sort_unstable();
        ids.dedup();
        table.rmw(&ids, &vec![1.0; ids.len() * 128], None, None).unwrap();
        let info = store.checkpoint(&[]).unwrap();
        assert_eq!(info.rows_saved, ids.len() as u64);
        // An entry of the index log is a key and a row number; a frame around it all.
        let index_log = ids.len() as u64 * 32 + 4096;
        assert!(info.log_bytes <= bytes * 3 / 100, "{info:?}");
        assert!(info.file_bytes <= index_log, "{info:?}");
    }
    let info = store.checkpoint(&[]).unwrap();
    assert_eq!(info.rows_saved, 0);
    assert!(info.log_bytes == 0 && info.file_bytes < 4096, "{info:?}");
}

fn narrow(store: &std::sync::Arc<Store>) -> Table {
    store.table("t", &TableSpec { staleness: StalenessBound::Infinite, ..spec(1, SGD) }).unwrap()
}

fn put_narrow(table: &Table, ids: impl Iterator<Item = u64>, value: f32) {
    let ids: Vec<u64> = ids.collect();
    for ids in ids.chunks(1 << 14) {
        table.put(ids, &vec![value; ids.len()], None).unwrap();
    }
}

/// A small budget has the index come from its files in many batches.
#[test]
fn opening_in_batches_brings_the_last_state_into_an_index_of_its_size() {
    const ROWS: u64 = 150_000;
    let _turn = TURN.lock();
    let volume = MemoryVolume::new();
    {
        let store = open(&volume, &options(16 << 20));
        let table = narrow(&store);
        put_narrow(&table, 0..ROWS, 1.0);
        store.checkpoint(&[]).unwrap();
        put_narrow(&table, (0..ROWS).filter(|id| id % 2 == 0), 2.0);
        let gone: Vec<u64> = (0..ROWS).filter(|id| id % 10 == 3).collect();
        assert_eq!(table.delete(&gone).unwrap(), gone.len());
        store.checkpoint(&[]).unwrap();
        put_narrow(&table, (0..ROWS).filter(|id| id % 4 == 0), 3.0);
        store.checkpoint(&[]).unwrap();
        store.close();
    }
    let store = open(&volume, &options(16 << 20));
    let table = narrow(&store);
    assert_eq!(table.len() as u64, ROWS / 10 * 9);
    let ids: Vec<u64> = (0..ROWS).filter(|id| id % 10 != 3).collect();
    let mut rows = vec![0.0; ids.len()];
    table.get(&ids, &mut rows).unwrap();
    for (id, row) in ids.iter().zip(rows) {
        let last = if id % 4 == 0 { 3.0 } else { 1.0 + f32::from(id % 2 == 0) };
        assert_eq!(row, last, "row {id}");
    }
    let bytes_per_row = store.stats().index_bytes as f64 / ids.len() as f64;
    assert!((16.0..19.0).contains(&bytes_per_row), "{bytes_per_row}: 16 are needed, growing leaves up to 24");
}

#[test]
fn an_index_larger_than_the_budget_is_refused_by_its_name() {
    let _turn = TURN.lock();
    let volume = MemoryVolume::new();
    {
        let store = open(&volume, &options(64 << 20));
        put_narrow(&narrow(&store), 0..1_000_000, 1.0);
        store.checkpoint(&[]).unwrap();
        store.close();
    }
    let error = Store::open_volume(std::sync::Arc::new(volume), options(16 << 20)).unwrap_err();
    assert!(matches!(error, StoreError::MemoryTooSmall { option: "memory", .. }), "{error}");
}
