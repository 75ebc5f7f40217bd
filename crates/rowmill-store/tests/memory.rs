//! Memory and device traffic, as measured by the kernel.
//!
//! What could break: the store keeps its budget by its own count while the process grows; reads go through
//! the page cache, which no budget covers; an incremental checkpoint writes everything. So these tests use
//! the kernel's accounts of this process, and compare the bytes of a checkpoint with the changes. The tests
//! run one at a time, because the accounts cover the whole process.

mod common;

use std::sync::Mutex;

use common::*;
use rowmill_store::*;
use rowmill_testkit::{Permutation, Rng64, disk_read_bytes, resident_bytes};

static TURN: Mutex<()> = Mutex::new(());

fn options(memory: u64) -> StoreOptions {
    StoreOptions { memory, ..common::options(None) }
}

fn table(store: &std::sync::Arc<Store>) -> Table {
    store.table("t", &TableSpec { staleness: StalenessBound::Infinite, ..spec(128, SGD) }).unwrap()
}

/// What the process may use beyond 1.05 of the budget: stacks of threads, and memory kept by the heap.
const BESIDE: u64 = 4 << 20;

/// Growth of resident memory since before the store was opened. The heap's free memory is returned to the
/// kernel first.
struct Growth {
    before: u64,
    most: u64,
}

impl Growth {
    /// `None` if the kernel does not report it.
    fn begin() -> Option<Self> {
        // SAFETY: returns free pages of the heap to the kernel and changes nothing else.
        unsafe { libc::malloc_trim(0) };
        Some(Self { before: resident_bytes()?, most: 0 })
    }

    fn sample(&mut self) {
        self.most = self.most.max(resident_bytes().unwrap().saturating_sub(self.before));
    }

    #[track_caller]
    fn check(&self, budget: u64, stats: &Stats) {
        let limit = budget + budget / 20 + BESIDE;
        let (most, budget, limit) = (self.most >> 10, budget >> 10, limit >> 10);
        println!(
            "budget {budget} KiB: grew by {most} KiB, {:.3} of it; limit {limit} KiB",
            most as f64 / budget as f64
        );
        assert!(
            most <= limit,
            "grew by {most} KiB with a budget of {budget} KiB, limit {limit} KiB: {stats:?}"
        );
        assert!(most >= budget / 2, "only {most} KiB of the budget of {budget} KiB are used");
    }
}

/// Fill a table to more than twice its budget in random order, with training reads, updates, lookahead and
/// checkpoints in between. Nearly every page of a direct index is touched.
fn outgrow(budget: u64, dim: u32, dense: bool) {
    const BATCH: usize = 4096;
    let _turn = TURN.lock();
    let steps = budget * 5 / 2 / u64::from(8 * dim) / BATCH as u64;
    let rows = steps * BATCH as u64;
    let order = Permutation::new(rows, 1);
    // The caller's own buffers are touched before anything is measured.
    let width = BATCH * dim as usize;
    let (gradients, mut out) = (vec![1e-3_f32; width], vec![1.0_f32; width]);
    let folder = tempfile::tempdir().unwrap();
    let Some(mut growth) = Growth::begin() else {
        eprintln!("skipped: this kernel does not report resident memory");
        return;
    };
    let store = Store::open(folder.path(), options(budget)).unwrap();
    let ids = if dense { IdRange::Dense { rows } } else { IdRange::Sparse };
    let spec = TableSpec { staleness: StalenessBound::Infinite, ids, ..spec(dim, ADAGRAD) };
    let table = store.table("t", &spec).unwrap();
    let mut rng = Rng64::new(1);
    let batch =
        |step: u64| -> Vec<u64> { (0..BATCH as u64).map(|id| order.of(step * BATCH as u64 + id)).collect() };
    for step in 0..steps {
        let known = batch(rng.below(step + 1));
        table.lookahead(&known, Destination::Buffer { steps: 1 }).unwrap();
        table.get_or_init(&batch(step), &mut out, None).unwrap();
        growth.sample();
        table.rmw(&known, &gradients, None, None).unwrap();
        if step % (steps / 4) == steps / 8 {
            store.checkpoint(&[]).unwrap();
        }
        growth.sample();
    }
    let stats = store.stats();
    assert!(stats.device_live_bytes > budget, "{stats:?}");
    growth.check(budget, &stats);
    let counted = stats.index_bytes + stats.row_bytes + stats.overhead_bytes + stats.buffer_bytes;
    assert!(counted <= budget, "{stats:?}");
}

#[test]
fn the_process_stays_within_64_mib_while_the_store_outgrows_it() {
    outgrow(64 << 20, 128, false);
}

#[test]
fn the_process_stays_within_64_mib_with_narrow_rows() {
    outgrow(64 << 20, 16, false);
}

/// A direct index takes pages when ids are written.
#[test]
fn the_process_stays_within_64_mib_with_a_direct_index() {
    outgrow(64 << 20, 16, true);
}

#[test]
fn the_process_stays_within_256_mib_while_the_store_outgrows_it() {
    outgrow(256 << 20, 128, false);
}

/// Takes some minutes: `ROWMILL_MEMORY_GIB=1 cargo test -p rowmill-store --test memory gib -- --nocapture`.
#[test]
fn the_process_stays_within_1_gib_while_the_store_outgrows_it() {
    if std::env::var_os("ROWMILL_MEMORY_GIB").is_none() {
        eprintln!("skipped: set ROWMILL_MEMORY_GIB=1 to fill 2.5 GiB");
        return;
    }
    outgrow(1 << 30, 128, false);
}

fn dense(rows: u64) -> TableSpec {
    TableSpec { staleness: StalenessBound::Infinite, ids: IdRange::Dense { rows }, ..spec(16, SGD) }
}

/// The sufficient memory named by an error, and its text.
#[track_caller]
fn too_small<T: std::fmt::Debug>(result: Result<T, StoreError>) -> (u64, String) {
    let error = result.unwrap_err();
    let text = error.to_string();
    let StoreError::MemoryTooSmall { needed, .. } = error else { panic!("{error}") };
    (needed, text)
}

#[test]
fn a_direct_index_is_charged_to_the_budget_or_refused() {
    const ROWS: u64 = 100_000_000;
    let _turn = TURN.lock();
    let store = open(&MemoryVolume::new(), &options(64 << 20));
    let before = store.stats().index_bytes;
    let (needed, text) = too_small(store.table("items", &dense(ROWS)));
    for part in ["\"items\"", "500", "ids in [0, 100000000)", "memory=67108864", &needed.to_string()] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert_eq!(store.stats().index_bytes, before, "nothing is charged for a table that was not created");
    assert_eq!(store.table_names(), [""; 0]);
    assert!(needed > 5 * ROWS && needed < 5 * ROWS + (32 << 20), "{needed}");

    too_small(open(&MemoryVolume::new(), &options(5 * ROWS)).table("items", &dense(ROWS)));
    let store = open(&MemoryVolume::new(), &options(needed));
    let table = store.table("items", &dense(ROWS)).unwrap();
    let ids: Vec<u64> = (0..20_000).map(|number| number * 4_999).collect();
    table.put(&ids, &vec![0.25; ids.len() * 16], None).unwrap();
    let mut rows = vec![0.0; ids.len() * 16];
    table.get(&ids, &mut rows).unwrap();
    assert!(rows.iter().all(|&weight| weight == 0.25));
    assert!(store.stats().index_bytes >= 5 * ROWS);
}

#[test]
fn rows_are_evicted_to_make_room_for_direct_indexes() {
    const ROWS: u64 = 5_000_000;
    let _turn = TURN.lock();
    let store = open(&MemoryVolume::new(), &options(64 << 20));
    // Another group than that of the dense tables uses the memory.
    let wide = table(&store);
    put_numbered(&wide, 0, 120_000);
    assert!(store.stats().row_bytes > 40 << 20);
    for name in ["a", "b"] {
        store.table(name, &dense(ROWS)).unwrap();
        let stats = store.stats();
        let counted = stats.index_bytes + stats.row_bytes + stats.overhead_bytes + stats.buffer_bytes;
        assert!(counted <= 64 << 20, "{name}: {stats:?}");
    }
    let (_, text) = too_small(store.table("c", &dense(ROWS)));
    assert!(text.contains("\"c\"") && text.contains(&(5 * ROWS / 1000).to_string()[..2]), "{text}");
    assert_eq!(store.table_names(), ["a", "b", "t"]);
}

#[test]
fn a_store_whose_direct_indexes_exceed_the_budget_is_not_opened() {
    const ROWS: u64 = 8_000_000;
    let _turn = TURN.lock();
    let volume = MemoryVolume::new();
    {
        let store = open(&volume, &options(256 << 20));
        for name in ["a", "b", "c"] {
            let rows = if name == "b" { 2 * ROWS } else { ROWS };
            store.table(name, &dense(rows)).unwrap().put(&[7], &[1.0; 16], None).unwrap();
        }
        store.checkpoint(&[]).unwrap();
        store.close();
    }
    let open = |memory| Store::open_volume(std::sync::Arc::new(volume.clone()), options(memory));
    let (needed, text) = too_small(open(64 << 20));
    for part in ["\"b\"", "80", "ids in [0, 16000000)", "memory=67108864"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert!(needed > 4 * 5 * ROWS && needed < 4 * 5 * ROWS + (32 << 20), "{needed}");
    too_small(open(4 * 5 * ROWS));
    let store = open(needed).unwrap();
    let mut row = [0.0; 16];
    store.open_table("c").unwrap().get(&[7], &mut row).unwrap();
    assert_eq!(row, [1.0; 16]);
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
        eprintln!("skipped: {io} in {}, or this kernel does not report disk reads", folder.path().display());
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
fn a_checkpoint_writes_only_changes() {
    const ROWS: u64 = 40_000;
    let _turn = TURN.lock();
    let store = open(&MemoryVolume::new(), &options(64 << 20));
    let table = table(&store);
    put_numbered(&table, 0, ROWS);
    let bytes = ROWS * 512;
    let first = store.checkpoint(&[]).unwrap();
    assert!(first.rows_saved <= ROWS && first.file_bytes > 0);
    assert!(store.stats().device_bytes_written >= bytes);
    // At first all rows are changes of the index, so one snapshot is written.
    assert!(store.checkpoint(&[]).unwrap().file_bytes < ROWS * 13);
    let mut rng = Rng64::new(3);
    for _ in 0..3 {
        let mut ids: Vec<u64> = (0..ROWS / 100).map(|_| rng.below(ROWS)).collect();
        ids.sort_unstable();
        ids.dedup();
        table.rmw(&ids, &vec![1.0; ids.len() * 128], None, None).unwrap();
        let info = store.checkpoint(&[]).unwrap();
        assert_eq!(info.rows_saved, ids.len() as u64);
        // An entry of the index log is a key and a row number, in a frame.
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

/// With a small budget, the index is loaded from its files in many batches.
#[test]
fn opening_in_batches_loads_the_last_state_into_an_index_of_its_size() {
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
fn an_index_larger_than_the_budget_is_refused_by_name() {
    let _turn = TURN.lock();
    let volume = MemoryVolume::new();
    {
        let store = open(&volume, &options(64 << 20));
        put_narrow(&narrow(&store), 0..1_000_000, 1.0);
        store.checkpoint(&[]).unwrap();
        store.close();
    }
    let open = |memory| Store::open_volume(std::sync::Arc::new(volume.clone()), options(memory));
    let (needed, text) = too_small(open(16 << 20));
    assert!(text.contains("the index of 1000000 rows") && text.contains("memory=16777216"), "{text}");
    assert!((17 << 20..48 << 20).contains(&needed), "{needed}");
    assert_eq!(narrow(&open(needed).unwrap()).len(), 1_000_000);
}

/// Put rows into tables until the memory holds no index of more rows: `calls` times `rows` rows into a table, then
/// into the next one.
fn fill(store: &std::sync::Arc<Store>, [tables, calls, rows]: [u64; 3], next: &mut u64) {
    let open = |number| {
        let dim = 1 + number as u32 % 2;
        let spec = TableSpec { staleness: StalenessBound::Infinite, ..spec(dim, SGD) };
        (store.table(&format!("{number}"), &spec), dim)
    };
    for _ in 0..1_000_000 {
        let (table, dim) = open(*next / calls % tables);
        let ids: Vec<u64> = (*next * rows..(*next + 1) * rows).collect();
        *next += 1;
        match table.and_then(|table| table.put(&ids, &vec![1.0; ids.len() * dim as usize], None)) {
            Ok(()) => {}
            Err(StoreError::MemoryTooSmall { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the memory is never used up");
}

/// A store that has grown until its memory holds no more opens with the same memory, time after time.
#[test]
fn a_store_that_used_up_its_memory_opens_with_the_same_memory() {
    let _turn = TURN.lock();
    // One large table; tables with a few rows per shard; of some pages per shard; of many.
    let small =
        [[1, 1, 20_000], [10_000, 1, 50], [40, 1, 700], [10_000, 1, 3_400]].map(|shape| (shape, 16 << 20));
    for (shape, memory) in small.into_iter().chain([([10_000, 114, 1_000], 48 << 20)]) {
        let (volume, mut next) = (MemoryVolume::new(), 0);
        for life in 0..8 {
            // The first opening has a little more memory, so that the others begin with none left.
            let memory = if life == 0 { memory + memory / 48 } else { memory };
            let opened = Store::open_volume(std::sync::Arc::new(volume.clone()), options(memory));
            let store = opened.unwrap_or_else(|error| panic!("{shape:?}, life {life}: {error}"));
            let before = store.stats().index_bytes;
            fill(&store, shape, &mut next);
            let stats = store.stats();
            let is_within = stats.index_bytes + stats.buffer_bytes <= memory;
            assert!(is_within || stats.index_bytes == before, "{shape:?}, life {life}: {stats:?}");
            // Changed rows make the log grow, whose memory is part of the budget, too.
            let table = store.open_table("0").unwrap();
            let mut changed = 0;
            let change = |ids: &[u64], weights: &[f32]| {
                table.put(ids, &vec![2.0; weights.len()], None).unwrap();
                changed += ids.len();
                changed < 20_000
            };
            table.scan(1 << 12, change).unwrap();
            store.checkpoint(&[]).unwrap();
            store.close();
        }
    }
}

/// Rows that a call reads from the device, or initializes because they are missing, stay in buffers until it
/// ends.
#[test]
fn cold_rows_of_many_large_calls_stay_within_the_budget() {
    const BUDGET: u64 = 64 << 20;
    const ROWS: u64 = 300_000;
    const CALLERS: u64 = 4;
    const IDS: usize = 10_000;
    let _turn = TURN.lock();
    let mut outs: Vec<Vec<f32>> = (0..CALLERS).map(|_| vec![1.0; IDS * 128]).collect();
    let folder = tempfile::tempdir().unwrap();
    let Some(mut growth) = Growth::begin() else {
        eprintln!("skipped: this kernel does not report resident memory");
        return;
    };
    let store = Store::open(folder.path(), options(BUDGET)).unwrap();
    let table = table(&store);
    put_numbered(&table, 0, ROWS);
    let offsets: Vec<i64> = (0..=IDS as i64).collect();
    std::thread::scope(|scope| {
        let callers: Vec<_> = outs
            .iter_mut()
            .zip(0..)
            .map(|(out, caller)| {
                let (store, table, offsets) = (&store, &table, &offsets);
                scope.spawn(move || {
                    let mut rng = Rng64::new(caller);
                    for round in 0..12 {
                        // Every third round asks for missing rows.
                        let unborn = round % 3 == 2;
                        let ids: Vec<u64> =
                            (0..IDS).map(|_| rng.below(ROWS) + if unborn { 1 << 40 } else { 0 }).collect();
                        if round % 3 == 0 {
                            table.get_or_init(&ids, out, None).unwrap();
                        } else {
                            let bag = IdBag {
                                ids: &ids,
                                offsets,
                                weights: None,
                                padding: None,
                                pooling: Pooling::Sum,
                            };
                            store.evaluate(&[(table, bag)], out, 128, None).unwrap();
                        }
                        if !unborn {
                            assert!(
                                ids.iter().zip(out.chunks(128)).all(|(&id, row)| row == [id as f32; 128])
                            );
                        }
                    }
                })
            })
            .collect();
        while !callers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            growth.sample();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    growth.check(BUDGET, &store.stats());
}

/// The rows of one bag are pooled together, so they are in memory together.
#[test]
fn a_bag_of_more_cold_rows_than_the_memory_can_hold_is_refused() {
    const ROWS: usize = 6000;
    let _turn = TURN.lock();
    let ids: Vec<u64> = (0..ROWS as u64).collect();
    let read = |memory| {
        let store = open(&MemoryVolume::new(), &options(memory));
        let offsets = &[0, ROWS as i64];
        let bag = IdBag { ids: &ids, offsets, weights: None, padding: None, pooling: Pooling::Sum };
        store.evaluate(&[(&table(&store), bag)], &mut [0.0; 128], 128, None)
    };
    let (needed, text) = too_small(read(16 << 20));
    assert!(text.contains("6000 rows") && text.contains("memory=16777216"), "{text}");
    read(needed).unwrap();
}
