//! Regression tests: four pairs of calls that once deadlocked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rowmill_store::*;
use rowmill_testkit::Rng64;

use crate::common::{SGD, open, spec};
use crate::watchdog::Watchdog;

const DIM: usize = 64;
/// Ids of a batch: more than are needed to spread a call.
const BATCH: usize = 16_384;
/// Rows of the table: three times as many as fit into memory.
const ROWS: u64 = 40_000;

/// A store whose table exceeds its memory, without clocks, so that calls wait only for locks.
fn store(threads: usize) -> (std::sync::Arc<Store>, Table) {
    let options = StoreOptions {
        memory: 32 << 20,
        row_memory: Some(4 << 20),
        threads,
        seed: 7,
        ..StoreOptions::default()
    };
    let store = open(&MemoryVolume::new(), &options);
    let spec = TableSpec { staleness: StalenessBound::Infinite, ..spec(DIM as u32, SGD) };
    let table = store.table("large", &spec).unwrap();
    for first in (0..ROWS).step_by(BATCH) {
        let ids: Vec<u64> = (first..ROWS.min(first + BATCH as u64)).collect();
        table.put(&ids, &vec![1.0; ids.len() * DIM], None).unwrap();
    }
    (store, table)
}

struct Batch {
    ids: Vec<u64>,
    offsets: Vec<i64>,
    vectors: Vec<f32>,
}

impl Batch {
    fn new() -> Self {
        Self { ids: vec![0; BATCH], offsets: (0..=BATCH as i64).collect(), vectors: vec![0.0; BATCH * DIM] }
    }

    fn draw(&mut self, rng: &mut Rng64) {
        self.ids.fill_with(|| rng.below(ROWS));
    }

    fn bag(&self) -> IdBag<'_> {
        IdBag { ids: &self.ids, offsets: &self.offsets, weights: None, padding: None, pooling: Pooling::Sum }
    }

    fn evaluate(&mut self, store: &Store, table: &Table, rng: &mut Rng64) {
        self.draw(rng);
        let mut vectors = std::mem::take(&mut self.vectors);
        store.evaluate(&[(table, self.bag())], &mut vectors, DIM, None).unwrap();
        self.vectors = vectors;
    }

    fn train(&mut self, store: &Store, table: &Table, rng: &mut Rng64) {
        self.draw(rng);
        let mut vectors = std::mem::take(&mut self.vectors);
        let ticket = store.ticket().unwrap();
        let lookup = store.lookup(&[(table, self.bag())], &mut vectors, DIM, Some(&ticket)).unwrap();
        store.apply(&lookup, &vectors, DIM, &[0.0], Some(&ticket)).unwrap();
        self.vectors = vectors;
    }
}

/// Run all until the first has made `calls`.
fn meet(calls: u64, first: impl Fn(&mut Rng64) + Sync, others: &[&(dyn Fn(&mut Rng64) + Sync)]) {
    let (watchdog, left) = (Watchdog::start(), AtomicU64::new(calls));
    std::thread::scope(|scope| {
        let (watchdog, left) = (&watchdog, &left);
        for (number, other) in others.iter().enumerate() {
            scope.spawn(move || {
                let mut rng = Rng64::new(100 + number as u64);
                while left.load(Relaxed) > 0 {
                    other(&mut rng);
                    watchdog.call_ended();
                }
            });
        }
        let mut rng = Rng64::new(99);
        for _ in 0..calls {
            first(&mut rng);
            watchdog.call_ended();
            left.fetch_sub(1, Relaxed);
        }
    });
    assert!(watchdog.calls() >= calls);
}

#[test]
fn two_evaluating_callers_with_eight_threads_end() {
    let (store, table) = store(8);
    let evaluate = |rng: &mut Rng64| Batch::new().evaluate(&store, &table, rng);
    meet(300, evaluate, &[&evaluate]);
    assert!(store.jobs_spread() > 40, "calls are spread");
}

#[test]
fn a_training_and_an_evaluating_caller_end() {
    for threads in [4, 8] {
        let (store, table) = store(threads);
        meet(
            20,
            |rng| Batch::new().train(&store, &table, rng),
            &[&|rng| {
                Batch::new().evaluate(&store, &table, rng);
            }],
        );
        assert!(store.jobs_spread() > 20, "calls are spread");
    }
}

#[test]
fn creating_tables_during_checkpoints_ends() {
    // The two calls overlap only occasionally.
    for _ in 0..5 {
        let store = open(&MemoryVolume::new(), &StoreOptions { threads: 2, ..StoreOptions::default() });
        let number = AtomicU64::new(0);
        let make = |_: &mut Rng64| {
            let name = format!("table {}", number.fetch_add(1, Relaxed));
            store.table(&name, &spec(4, SGD)).unwrap();
        };
        meet(4000, make, &[&|_| _ = store.checkpoint(&[]).unwrap()]);
    }
}

#[test]
fn creating_tables_during_reads_of_missing_rows_ends() {
    let store = open(&MemoryVolume::new(), &StoreOptions { threads: 2, ..StoreOptions::default() });
    let table = store.table("empty", &spec(4, SGD)).unwrap();
    let number = AtomicU64::new(0);
    let make = |_: &mut Rng64| {
        let name = format!("table {}", number.fetch_add(1, Relaxed));
        store.table(&name, &spec(4, SGD)).unwrap();
    };
    let get = |rng: &mut Rng64| {
        let ids: Vec<u64> = (0..2000).map(|_| rng.next_u64()).collect();
        table.get(&ids, &mut vec![0.0; ids.len() * 4]).unwrap();
    };
    meet(1500, make, &[&get, &get, &get]);
}
