//! The store compared with a hash map.
//!
//! What could break: a row is read from the wrong place, an update is lost when its row leaves memory, a
//! deleted or older version of a row comes back, a gradient is applied twice. Random calls on a store too
//! small for its rows are repeated on a plain map, and every answer is compared exactly, for every optimizer;
//! sums of gradients are exact here. Memory is so small that rows leave it, segments are cleaned and
//! checkpoints freeze rows all the time. The first test asserts this after all its cases.

mod cases;
#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use cases::{SHAPES, check_random_calls};
use common::*;
use rowmill_store::*;
use rowmill_testkit::{Rng64, ThrottleLimits, ThrottledVolume};

/// Cases of each shape and number of threads.
const CASES: u32 = 6;

#[test]
fn random_calls_give_the_answers_of_a_map() {
    check_random_calls(CASES, &SHAPES, thread_counts(), || Arc::new(MemoryVolume::new()));
}

/// Updates continue while a checkpoint saves rows. The checkpoint must hold all rows as of one cut; its step
/// count says which. Replaying that many updates on the model gives the same rows. Nothing is evicted here.
/// So if a checkpoint saves fewer rows than were dirty, updates appended the frozen versions of the others.
#[test]
fn updates_during_a_checkpoint_belong_to_the_next_one() {
    const ROWS: u64 = 20_000;
    const ROUNDS: u64 = 12;
    let update = |table: &Table, ids: &[u64]| {
        let values: Vec<f32> = ids.iter().flat_map(|&id| gradients(&mut Rng64::new(id), 32)).collect();
        table.rmw(ids, &values, None, None).unwrap();
    };
    let spec = TableSpec { staleness: StalenessBound::Infinite, ..spec(32, SGD) };
    // As slow as a disk, so that updates happen while the checkpoint saves.
    let limits = ThrottleLimits { bytes_per_s: Some(40 << 20), ..ThrottleLimits::default() };
    let volume = Arc::new(ThrottledVolume::new(Arc::new(MemoryVolume::new()), limits));
    let open = || Store::open_volume(volume.clone(), options(Some(16 << 20))).unwrap();
    let mut updates: Vec<Vec<u64>> = Vec::new();
    let mut copied = 0;
    {
        let store = open();
        let table = store.table("t", &spec).unwrap();
        let mut rng = Rng64::new(11);
        // In every round the updater changes all rows, signals this, and continues with a few rows at a time.
        // So all rows are dirty, no more can become dirty, and a checkpoint begins.
        let (ready, done) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let updater = scope.spawn(|| {
                let mut updates: Vec<Vec<u64>> = Vec::new();
                for round in 1..=ROUNDS {
                    updates.push((0..ROWS).collect());
                    update(&table, updates.last().unwrap());
                    ready.store(round, SeqCst);
                    while done.load(SeqCst) < round {
                        updates.push((0..64).map(|_| rng.below(ROWS)).collect());
                        update(&table, updates.last().unwrap());
                    }
                }
                updates
            });
            for round in 1..=ROUNDS {
                while ready.load(SeqCst) < round {
                    std::thread::yield_now();
                }
                let info = store.checkpoint(&[]).unwrap();
                done.store(round, SeqCst);
                assert!(info.rows_saved <= ROWS);
                copied += ROWS - info.rows_saved;
            }
            updates.extend(updater.join().unwrap());
        });
        assert_eq!(store.stats().evictions, 0);
    }
    assert!(copied > 0, "no update met a frozen row");
    let store = open();
    let table = store.open_table("t").unwrap();
    let mut model = Model::new(spec, 0);
    for ids in &updates[..table.steps() as usize] {
        let values: Vec<f32> = ids.iter().flat_map(|&id| gradients(&mut Rng64::new(id), 32)).collect();
        model.rmw(ids, &values, 0.5);
    }
    model.check(&table);
}
