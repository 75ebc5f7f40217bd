//! How many rows cleaning moves, depending on how rows fill the blocks of the log.
//!
//! A block holds four rows of 832 bytes, and a fifth of it stays empty. When that counted as dead rows, it
//! used up nearly all the space that the log may have beyond its live rows, before any row was dead. Training
//! then moved three rows for each row that it changed.

use std::cell::Cell;
use std::sync::Arc;

use crate::common::{SEED, SGD, open, spec};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const ROWS: u64 = 40_000;

/// A store that cleans turn by turn, and a table with `dim` weights per row.
fn cleaned_in_turns(dim: u32, row_memory: u64) -> (Arc<Store>, Table) {
    let options = StoreOptions {
        memory: row_memory + (24 << 20),
        row_memory: Some(row_memory),
        threads: 1,
        seed: SEED,
        background: Background::Turns { incarnation: 0 },
        ..StoreOptions::default()
    };
    let store = open(&MemoryVolume::new(), &options);
    let table = store.table("t", &spec(dim, SGD)).unwrap();
    (store, table)
}

/// Rows moved per row changed, for rows of `dim` weights with memory for few rows.
fn moved_per_change(dim: u32) -> f64 {
    let (store, table) = cleaned_in_turns(dim, 8 << 20);
    let put = |ids: &[u64]| {
        table.put(ids, &vec![1.0; ids.len() * dim as usize], None).unwrap();
        while store.turn(Work::Clean).unwrap() {}
    };
    let all: Vec<u64> = (0..ROWS).collect();
    all.chunks(400).for_each(put);
    let before = store.stats().rows_compacted;
    let mut random = Rng64::new(1);
    for _ in 0..ROWS / 400 {
        let ids: Vec<u64> = (0..400).map(|_| random.below(ROWS)).collect();
        put(&ids);
        // Otherwise places wait for a checkpoint before they are rewritten.
        store.checkpoint(&[]).unwrap();
    }
    (store.stats().rows_compacted - before) as f64 / ROWS as f64
}

#[test]
fn unused_ends_of_blocks_do_not_trigger_cleaning() {
    let (whole, with_ends) = (moved_per_change(256), moved_per_change(208));
    assert!(whole > 0.1, "nothing is cleaned: {whole}");
    assert!(
        with_ends < 1.3 * whole,
        "{with_ends} rows moved per change, {whole} where rows fill their blocks"
    );
}

#[test]
fn rows_changed_in_memory_do_not_trigger_cleaning() {
    let (store, table) = cleaned_in_turns(256, 32 << 20);
    let put = |ids: &[u64]| {
        table.put(ids, &vec![1.0; ids.len() * 256], None).unwrap();
        while store.turn(Work::Clean).unwrap() {}
    };
    let all: Vec<u64> = (0..ROWS).collect();
    all.chunks(400).for_each(put);
    store.checkpoint(&[]).unwrap();
    let before = store.stats();
    // Half of the rows change, and their versions in the log are dead: the log has the space that they will
    // need.
    for _ in 0..3 {
        all[..ROWS as usize / 2].chunks(400).for_each(put);
    }
    let after = store.stats();
    assert!(after.rows_dirty > ROWS * 2 / 5, "{} rows changed in memory", after.rows_dirty);
    assert_eq!(after.rows_compacted, before.rows_compacted);
}

/// Regression: a call cleaned until the log was small again. After a checkpoint this took hundreds of milliseconds.
#[test]
fn a_call_cleans_a_few_mebibytes_and_the_next_calls_go_on() {
    let (store, table) = cleaned_in_turns(256, 8 << 20);
    let all: Vec<u64> = (0..ROWS).collect();
    let put = |ids: &[u64]| table.put(ids, &vec![1.0; ids.len() * 256], None).unwrap();
    all.chunks(400).for_each(put);
    store.checkpoint(&[]).unwrap();
    let odd: Vec<u64> = (0..ROWS).filter(|id| id % 2 == 1).collect();
    table.delete(&odd).unwrap();
    store.checkpoint(&[]).unwrap();
    let over_live = || {
        let stats = store.stats();
        stats.device_used_bytes as f64 / stats.device_live_bytes as f64
    };
    let behind = over_live();
    let mut cleaned = 0;
    for ids in all.chunks(800) {
        let even: Vec<u64> = ids.iter().copied().filter(|id| id % 2 == 0).collect();
        let before = store.stats().rows_compacted;
        put(&even);
        let now = store.stats().rows_compacted - before;
        // 4 MiB of segments, of which half of the rows are dead.
        assert!(now <= 4096, "a change of 400 KiB moved {now} rows");
        cleaned += now;
        store.checkpoint(&[]).unwrap();
    }
    let after = over_live();
    assert!(behind > 1.8 && cleaned > 4096 && after < 1.45, "{behind} to {after}, {cleaned} rows moved");
}

/// A store with as few row places as a test can fill: 400 segments of 192 rows. Memory has room for about a
/// thousand rows.
fn short_of_places(volume: &MemoryVolume) -> (Arc<Store>, Table) {
    let options = StoreOptions {
        memory: 32 << 20,
        row_memory: Some(192 << 10),
        threads: 1,
        seed: SEED,
        background: Background::Turns { incarnation: 3 },
        row_places: 76_800,
        ..StoreOptions::default()
    };
    let store = open(volume, &options);
    let spec = TableSpec { staleness: StalenessBound::Infinite, ..spec(16, SGD) };
    let table = store.table("t", &spec).unwrap();
    (store, table)
}

/// Store rows with their ids as content until the store refuses. Returns how many.
fn fill(store: &Store, table: &Table, from: u64) -> (u64, StoreError) {
    let mut next = from;
    loop {
        let ids: Vec<u64> = (next..next + 100).collect();
        let values: Vec<f32> = ids.iter().flat_map(|&id| [id as f32; 16]).collect();
        if let Err(error) = table.put(&ids, &values, None) {
            return (next - from, error);
        }
        next += 100;
        while store.turn(Work::Clean).unwrap() {}
        if next.is_multiple_of(2000) {
            store.checkpoint(&[]).unwrap();
        }
    }
}

#[test]
fn a_group_without_row_places_refuses_new_rows_and_keeps_working() {
    let volume = MemoryVolume::new();
    let (store, table) = short_of_places(&volume);
    let (rows, error) = fill(&store, &table, 0);
    let StoreError::NoPlaces { group: 0, used, limit } = error else { panic!("{error}") };
    assert!(limit == 76_800 && used < limit && error.to_string().contains(&format!("{used} of {limit}")));
    assert!(rows > limit / 2, "{rows} rows in {limit} places");
    let stats = store.stats();
    let places = &stats.groups[0];
    assert_eq!(places.row_places, limit);
    assert!(places.row_places_share() > 0.8, "{places:?}");
    assert!(stats.prometheus().contains("rowmill_group_row_places{group=\"0\"} 76800"));

    // Reads of existing and missing rows, changes of rows in memory, and checkpoints continue.
    let check = |table: &Table, changed: &[u64]| {
        for first in (0..rows).step_by(100) {
            let mut row = vec![0.0; 100 * 16];
            let ids: Vec<u64> = (first..first + 100).collect();
            table.get(&ids, &mut row).unwrap();
            for (id, row) in ids.iter().zip(row.chunks(16)) {
                let value = if changed.contains(id) { -1.0 } else { *id as f32 };
                assert_eq!(row, [value; 16], "row {id}");
            }
        }
        table.get(&[u64::MAX - 7], &mut [0.0; 16]).unwrap();
    };
    check(&table, &[]);
    store.checkpoint(&[]).unwrap();
    let mut changed = Vec::new();
    for round in 0..20 {
        // A row that was just read is in memory.
        let ids = [round * 37, round * 37 + 1];
        table.get(&ids, &mut [0.0; 32]).unwrap();
        table.put(&ids, &[-1.0; 32], None).unwrap();
        changed.extend(ids);
        store.checkpoint(&[]).unwrap();
        while store.turn(Work::Clean).unwrap() {}
    }
    check(&table, &changed);
    store.close();
    drop((store, table));
    let (store, table) = short_of_places(&volume);
    check(&table, &changed);

    // Deleted rows make room.
    table.delete(&(0..rows / 2).collect::<Vec<u64>>()).unwrap();
    for _ in 0..3 {
        store.checkpoint(&[]).unwrap();
        while store.turn(Work::Clean).unwrap() {}
    }
    assert!(store.stats().groups[0].row_places_share() < places.row_places_share() - 0.2);
    let (more, error) = fill(&store, &table, 1 << 40);
    assert!(matches!(error, StoreError::NoPlaces { .. }), "{error}");
    assert!(more > rows / 4, "{more} rows in the place of {}", rows / 2);
    store.checkpoint(&[]).unwrap();
}

/// Change rows of all segments and make a checkpoint.
fn change_scattered(store: &Store, table: &Table, rows: u64, round: u64) -> Result<(), StoreError> {
    let ids: Vec<u64> = (0..400).map(|number| (number * 149 + round) % rows).collect();
    let mut values = vec![0.0; ids.len() * 16];
    table.get(&ids, &mut values).unwrap();
    let changed = table.put(&ids, &values, None);
    assert!(matches!(&changed, Ok(()) | Err(StoreError::NoPlaces { .. })), "{changed:?}");
    store.checkpoint(&[]).map(drop)
}

#[test]
fn cleaning_frees_row_places_for_checkpoints() {
    let (store, table) = short_of_places(&MemoryVolume::new());
    let (rows, _) = fill(&store, &table, 0);
    let before = store.stats().rows_compacted;
    for round in 0..150 {
        change_scattered(&store, &table, rows, round).unwrap();
        while store.turn(Work::Clean).unwrap() {}
    }
    assert!(store.stats().rows_compacted > before);
}

#[test]
fn a_checkpoint_without_row_places_is_refused_before_it_begins() {
    let volume = MemoryVolume::new();
    let (store, table) = short_of_places(&volume);
    let (rows, _) = fill(&store, &table, 0);
    // The pinned checkpoint keeps its versions of the rows, which fill the places with those of later checkpoints.
    let pinned = store.pin_checkpoint().unwrap();
    let refused = (0..1000).find_map(|round| change_scattered(&store, &table, rows, round).err());
    let error = refused.expect("a checkpoint was refused");
    assert!(matches!(error, StoreError::NoPlaces { .. }), "{error}");
    drop(pinned);
    // Nothing is lost: rows can be read. After deleting the rows that the checkpoint would save, the store
    // can be used.
    table.get(&[1, 2], &mut [0.0; 32]).unwrap();
    table.delete(&(0..rows).collect::<Vec<u64>>()).unwrap();
    store.checkpoint(&[]).unwrap();
    table.put(&[5], &[1.0; 16], None).unwrap();
    store.checkpoint(&[]).unwrap();
}

#[test]
fn a_checkpoint_returns_after_its_freed_space_is_released() {
    let row_memory = Some(4 << 20);
    let options =
        StoreOptions { memory: 32 << 20, row_memory, threads: 1, seed: SEED, ..StoreOptions::default() };
    let store = open(&MemoryVolume::new(), &options);
    let table = store.table("t", &spec(256, SGD)).unwrap();
    let all: Vec<u64> = (0..ROWS).collect();
    let put = |ids: &[u64]| table.put(ids, &vec![1.0; ids.len() * 256], None).unwrap();
    all.chunks(400).for_each(put);
    let mut random = Rng64::new(1);
    for tenth in 0..40 {
        for _ in 0..ROWS / 4000 {
            let ids: Vec<u64> = (0..400).map(|_| random.below(ROWS)).collect();
            put(&ids);
        }
        store.checkpoint(&[]).unwrap();
        let stats = store.stats();
        let in_use = stats.device_used_bytes + stats.device_pinned_bytes;
        let kept = (stats.device_live_bytes * 7 / 5).saturating_sub(in_use);
        // Cleaning continues meanwhile and frees one segment at a time.
        let spare = stats.device_live_bytes / 20;
        assert!(stats.device_free_bytes <= kept + spare, "checkpoint {tenth}: {stats:?}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Put,
    Rmw,
    Get,
    Delete,
    Checkpoint,
}

/// Calls with the number of their ids, which are drawn from the seed.
fn calls() -> impl Strategy<Value = Vec<(Call, usize, u64)>> {
    let call = prop_oneof![
        8 => Just(Call::Put),
        8 => Just(Call::Rmw),
        4 => Just(Call::Get),
        1 => Just(Call::Delete),
        6 => Just(Call::Checkpoint),
    ];
    prop::collection::vec((call, 8..800_usize, any::<u64>()), 200..300)
}

#[test]
fn writers_bound_the_segments_if_no_other_thread_cleans() {
    const DIM: usize = 256;
    let most = Cell::new(0.0_f64);
    let run = |calls: Vec<(Call, usize, u64)>| {
        let (store, table) = cleaned_in_turns(DIM as u32, 4 << 20);
        let all: Vec<u64> = (0..ROWS).collect();
        all.chunks(400).for_each(|ids| table.put(ids, &vec![1.0; ids.len() * DIM], None).unwrap());
        for (call, count, seed) in calls {
            let mut random = Rng64::new(seed);
            let ids: Vec<u64> = (0..count).map(|_| random.below(ROWS)).collect();
            let mut values = vec![0.5; count * DIM];
            match call {
                Call::Put => table.put(&ids, &values, None).unwrap(),
                Call::Rmw => table.rmw(&ids, &values, None, None).unwrap(),
                Call::Get => table.get(&ids, &mut values).unwrap(),
                Call::Delete => drop(table.delete(&ids[..count / 8]).unwrap()),
                // Otherwise places wait for a checkpoint before they are rewritten.
                Call::Checkpoint => drop(store.checkpoint(&[]).unwrap()),
            }
            let stats = store.stats();
            // A row that is changed in memory has no live bytes.
            let live = stats.device_live_bytes + stats.rows_dirty * (DIM * 4) as u64;
            // Reads may write rows to make room, and do not clean.
            if matches!(call, Call::Put | Call::Rmw) {
                most.set(most.get().max(stats.device_used_bytes as f64 / live as f64));
            }
        }
        Ok(())
    };
    TestRunner::new(ProptestConfig { cases: 4, ..ProptestConfig::default() }).run(&calls(), run).unwrap();
    assert!((1.3..1.45).contains(&most.get()), "segments took {} times the live bytes", most.get());
}
