//! Pooled lookups of evaluation, which pool rows in the order of the ids while no shard is being changed.
//!
//! What could break: a missing row reads as another row's initial values, or as none; padding reads as a missing row; one
//! row on the device sends all later lookups of busy threads along the slow path.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rowmill_store::*;
use rowmill_testkit::Rng64;

use crate::common::{ADAGRAD, bf16, open, options, spec, split_bf16};

const DIM: usize = 48;
const ROWS: u64 = 4000;
/// Ids from `ROWS` on, of rows that do not fit into memory together.
const OTHERS: u64 = 24_000;

/// Specs of every dtype and index.
fn specs() -> Vec<TableSpec> {
    let hash = TableSpec { staleness: StalenessBound::Infinite, ..spec(DIM as u32, ADAGRAD) };
    let dense = |spec| TableSpec { ids: IdRange::Dense { rows: ROWS + OTHERS }, ..spec };
    [hash, bf16(hash), split_bf16(hash)].into_iter().flat_map(|spec| [spec, dense(spec)]).collect()
}

/// Ids below `end` in bags of 0 to 3.
fn bags(rng: &mut Rng64, count: usize, end: u64) -> (Vec<u64>, Vec<i64>) {
    let mut offsets = vec![0];
    for _ in 0..count {
        offsets.push(offsets.last().unwrap() + rng.below(4) as i64);
    }
    let ids = (0..*offsets.last().unwrap()).map(|_| rng.below(end)).collect();
    (ids, offsets)
}

/// Store rows of half of the ids below `ROWS`.
fn put_half(table: &Table) {
    put(table, &(0..ROWS).filter(|id| id % 2 == 0).collect::<Vec<u64>>());
}

fn put(table: &Table, ids: &[u64]) {
    let values: Vec<f32> = (0..ids.len() * DIM).map(|at| (at % 977) as f32 / 64.0 - 7.0).collect();
    table.put(ids, &values, None).unwrap();
}

/// The training lookup, which finds distinct ids, is the reference. All rows are in memory. Once rows have left memory,
/// shards count uses, and lookups take another way to the rows.
#[test]
fn missing_rows_are_pooled_with_the_others() {
    for spec in specs() {
        for counts_uses in [false, true] {
            // No background thread moves rows.
            let background = Background::Turns { incarnation: 1 };
            let options = StoreOptions { background, ..options(Some(4 << 20)) };
            let store = open(&MemoryVolume::new(), &options);
            let table = store.table("t", &spec).unwrap();
            if counts_uses {
                let others: Vec<u64> = (ROWS..ROWS + OTHERS).collect();
                others.chunks(1000).for_each(|ids| put(&table, ids));
                table.delete(&others).unwrap();
            }
            assert_eq!(store.stats().evictions > 0, counts_uses);
            put_half(&table);
            let before = store.stats();
            let (ids, offsets) = bags(&mut Rng64::new(3), 2000, ROWS);
            for padding in [None, Some(7), Some(8)] {
                for pooling in [Pooling::Sum, Pooling::Mean] {
                    let bag = IdBag { ids: &ids, offsets: &offsets, weights: None, padding, pooling };
                    let (mut evaluated, mut looked_up) = (vec![1.0; 2000 * DIM], vec![2.0; 2000 * DIM]);
                    store.evaluate(&[(&table, bag)], &mut evaluated, DIM, None).unwrap();
                    store.lookup(&[(&table, bag)], &mut looked_up, DIM, None).unwrap();
                    assert!(evaluated == looked_up, "{spec:?} {counts_uses} {padding:?} {pooling:?}");
                }
            }
            let stats = store.stats();
            assert_eq!(stats.lookups_apart, 0, "{spec:?} {counts_uses}");
            assert_eq!(stats.cold_reads, before.cold_reads, "{spec:?} {counts_uses}: all rows are in memory");
            assert_eq!(table.len() as u64, ROWS / 2, "no row was created");
        }
    }
}

#[test]
fn a_bag_with_more_missing_rows_than_a_piece_holds_is_pooled_too() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &specs()[0]).unwrap();
    put_half(&table);
    let (ids, offsets) = ((0..6000).collect::<Vec<u64>>(), [0, 3, 5990, 6000]);
    let bag = IdBag { ids: &ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Mean };
    let (mut evaluated, mut looked_up) = (vec![1.0; 3 * DIM], vec![2.0; 3 * DIM]);
    store.evaluate(&[(&table, bag)], &mut evaluated, DIM, None).unwrap();
    store.lookup(&[(&table, bag)], &mut looked_up, DIM, None).unwrap();
    assert!(evaluated == looked_up);
    assert!(store.stats().lookups_apart > 0, "their initial weights take more memory than a piece may");
}

/// Threads that are never idle together: each call that takes the slow path locks shards exclusively, and must not send the
/// calls of the other threads the same way.
#[test]
fn one_row_on_the_device_slows_one_call_only() {
    for threads in [2, 4, 16] {
        let calls = 20_000 / threads;
        let volume = MemoryVolume::new();
        let store = open(&volume, &options(None));
        let table = store.table("t", &specs()[0]).unwrap();
        put_half(&table);
        store.checkpoint(&[]).unwrap();
        store.close();
        let store = open(&volume, &options(None));
        let table = store.table("t", &specs()[0]).unwrap();
        let hot: Vec<u64> = (0..ROWS - 2).filter(|id| id % 2 == 0).collect();
        table.get(&hot, &mut vec![0.0; hot.len() * DIM]).unwrap();
        let before = store.stats();
        let begun = AtomicBool::new(false);
        let evaluate = |ids: &[u64]| {
            let offsets: Vec<i64> = (0..=ids.len() as i64).collect();
            let bag = IdBag { ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum };
            store.evaluate(&[(&table, bag)], &mut vec![0.0_f32; ids.len() * DIM], DIM, None).unwrap();
        };
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (hot, begun, evaluate) = (&hot, &begun, &evaluate);
                scope.spawn(move || {
                    let mut rng = Rng64::new(thread as u64);
                    for call in 0..calls {
                        let from = rng.below(hot.len() as u64 - 64) as usize;
                        evaluate(&hot[from..from + 64]);
                        if call == calls / 10 && !begun.swap(true, Relaxed) {
                            evaluate(&[ROWS - 2]);
                        }
                    }
                });
            }
        });
        let stats = store.stats();
        let apart = stats.lookups_apart - before.lookups_apart;
        assert_eq!(stats.cold_reads - before.cold_reads, 1, "one row was on the device");
        assert!(
            apart > 0 && apart < 64 * calls as u64 / 100,
            "{threads} threads: {apart} ids took the slow path"
        );
    }
}
