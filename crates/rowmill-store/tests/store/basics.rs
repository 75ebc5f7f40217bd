//! The basic calls: create, read, update, close, reopen. If one of these tests fails, look at it first.

use std::sync::Arc;

use rowmill_store::*;

fn options(memory: u64) -> StoreOptions {
    StoreOptions { memory, threads: 2, seed: 7, ..StoreOptions::default() }
}

fn spec(dim: u32, optimizer: OptimizerSpec) -> TableSpec {
    TableSpec {
        dim,
        dtype: Dtype::F32,
        optimizer,
        initializer: Initializer::Uniform { low: -0.5, high: 0.5 },
        staleness: StalenessBound::Steps(0),
        ids: IdRange::Sparse,
        eviction: None,
        admission: None,
    }
}

const SGD: OptimizerSpec = OptimizerSpec::Sgd { lr: 0.5 };
const ADAGRAD: OptimizerSpec = OptimizerSpec::Adagrad { lr: 0.5, eps: 1e-10, initial_accumulator: 0.0 };

#[test]
fn initial_values_do_not_depend_on_the_call_that_creates_a_row() {
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(16 << 20)).unwrap();
    let table = store.table("t", &spec(16, SGD)).unwrap();
    let mut seen = vec![0.0; 32];
    table.get(&[5, u64::MAX], &mut seen).unwrap();
    assert_eq!(table.len(), 0, "evaluation inserts nothing");
    let mut born = vec![0.0; 32];
    table.get_or_init(&[u64::MAX, 5], &mut born, None).unwrap();
    assert_eq!(table.len(), 2);
    assert_eq!((&seen[..16], &seen[16..]), (&born[16..], &born[..16]));
    assert_ne!(seen[..16], seen[16..]);
}

#[test]
fn gradients_of_a_repeated_id_are_summed_into_one_update() {
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(16 << 20)).unwrap();
    let table = store.table("t", &TableSpec { initializer: Initializer::Zeros, ..spec(4, SGD) }).unwrap();
    table.rmw(&[1, 2, 1], &[1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0], None, None).unwrap();
    let mut rows = [0.0; 8];
    table.get(&[1, 2], &mut rows).unwrap();
    assert_eq!(rows, [-2.0, -2.0, -2.0, -2.0, -1.0, -1.0, -1.0, -1.0]);
}

#[test]
fn evicted_rows_are_read_back_from_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let options = StoreOptions { row_memory: Some(1 << 20), ..options(16 << 20) };
    let store = Store::open(folder.path(), options).unwrap();
    let table = store.table("t", &spec(64, ADAGRAD)).unwrap();
    let count = 20_000_u64; // 10 MB of rows in at most 1 MiB
    for from in (0..count).step_by(1000) {
        let ids: Vec<u64> = (from..from + 1000).collect();
        let values: Vec<f32> =
            ids.iter().flat_map(|&id| (0..64).map(move |i| id as f32 + i as f32 / 64.0)).collect();
        table.put(&ids, &values, None).unwrap();
    }
    assert_eq!(table.len(), 20_000);
    let ids: Vec<u64> = (0..count).rev().collect();
    let mut rows = vec![0.0; ids.len() * 64];
    table.get(&ids, &mut rows).unwrap();
    for (row, &id) in rows.chunks(64).zip(&ids) {
        assert!(row.iter().enumerate().all(|(i, &value)| value == id as f32 + i as f32 / 64.0), "row {id}");
    }
    let stats = store.stats();
    assert!(stats.cold_reads > 10_000 && stats.evictions > 10_000, "{stats:?}");
    assert!(stats.row_bytes <= 1 << 20, "{stats:?}");
    assert_eq!(stats.rows_unsaved, count, "in memory and on the device");
    store.checkpoint(&[]).unwrap();
    assert_eq!(store.stats().rows_unsaved, 0);
    // Other rows than the changed ones are deleted: a changed row that has left memory would count twice.
    table.rmw(&[1, 2, 1], &[0.5; 192], None, None).unwrap();
    assert_eq!(store.stats().rows_unsaved, 2, "two changed");
    table.delete(&[3, 4]).unwrap();
    assert_eq!(store.stats().rows_unsaved, 4, "two changed and two deleted");
}

#[test]
fn a_store_opens_at_its_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<u64> = (0..5000).collect();
    let (mut saved, mut state) = (vec![0.0; 5000 * 16], vec![0.0; 5000 * 16]);
    {
        let store = Store::open(folder.path(), options(16 << 20)).unwrap();
        let table = store.table("t", &spec(16, ADAGRAD)).unwrap();
        table.rmw(&ids, &vec![0.25; 5000 * 16], None, None).unwrap();
        store.checkpoint(&[("dense", b"weights")]).unwrap();
        table.rmw(&ids[..100], &vec![0.5; 1600], None, None).unwrap();
        table.delete(&[4999]).unwrap();
        let info = store.checkpoint(&[("dense", b"more weights")]).unwrap();
        assert_eq!((info.epoch, info.rows_saved), (2, 100));
        table.get(&ids, &mut saved).unwrap();
        table.get_state(&ids, &mut state).unwrap();
        table.rmw(&ids, &vec![1.0; 5000 * 16], None, None).unwrap(); // lost: no checkpoint follows
    }
    let store = Store::open(folder.path(), options(16 << 20)).unwrap();
    let table = store.open_table("t").unwrap();
    assert_eq!((table.len(), table.steps(), store.checkpoint_epoch()), (4999, 2, 2));
    assert_eq!(store.attachment("dense").unwrap().unwrap(), b"more weights");
    let (mut rows, mut states) = (vec![0.0; 5000 * 16], vec![0.0; 5000 * 16]);
    table.get(&ids, &mut rows).unwrap();
    table.get_state(&ids, &mut states).unwrap();
    assert_eq!(rows, saved);
    assert_eq!(states, state);
}

#[test]
fn an_index_read_in_several_pieces_keeps_its_order() {
    const ROWS: u64 = 120_000; // twice, and 16 MiB of memory let some 40,000 entries be read at once
    let volume = Arc::new(MemoryVolume::new());
    let ids: Vec<u64> = (0..ROWS).map(|id| id.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let put =
        |table: &Table, ids: &[u64], value: f32| table.put(ids, &vec![value; ids.len() * 4], None).unwrap();
    {
        let store = Store::open_volume(volume.clone(), options(16 << 20)).unwrap();
        let [one, two] = ["one", "two"].map(|name| store.table(name, &spec(4, SGD)).unwrap());
        for table in [&one, &two] {
            put(table, &ids, 1.0);
        }
        store.checkpoint(&[]).unwrap();
        // Two more files of changes: one deleted row comes back, one does not.
        assert_eq!(one.delete(&ids[..2000]).unwrap(), 2000);
        store.checkpoint(&[]).unwrap();
        put(&one, &ids[..1000], 2.0);
        put(&two, &ids[5000..6000], 3.0);
        store.checkpoint(&[]).unwrap();
    }
    let store = Store::open_volume(volume, options(16 << 20)).unwrap();
    let [one, two] = ["one", "two"].map(|name| store.open_table(name).unwrap());
    assert_eq!((one.len() as u64, two.len() as u64), (ROWS - 1000, ROWS));
    for (table, id, value) in
        [(&one, 999, 2.0), (&one, 2000, 1.0), (&two, 999, 1.0), (&two, 5999, 3.0), (&two, 119_999, 1.0)]
    {
        let mut row = [0.0; 4];
        table.get(&[ids[id]], &mut row).unwrap();
        assert_eq!(row, [value; 4], "id {id} of {}", table.name());
    }
    assert_eq!(one.contains(&[ids[999], ids[1000], ids[1999]]).unwrap(), [true, false, false]);
}

#[test]
fn a_fused_lookup_sums_rows_and_its_backward_is_one_step() {
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(16 << 20)).unwrap();
    let zero = TableSpec { initializer: Initializer::Zeros, ..spec(2, SGD) };
    let (a, b) = (store.table("a", &zero).unwrap(), store.table("b", &zero).unwrap());
    a.put(&[1, 2], &[1.0, 10.0, 2.0, 20.0], None).unwrap();
    b.put(&[1], &[5.0, 50.0], None).unwrap();
    let ticket = store.ticket().unwrap();
    let bag = |ids, offsets| IdBag { ids, offsets, weights: None, padding: None, pooling: Pooling::Sum };
    let bags = [(&a, bag(&[1, 2, 1], &[0, 2, 3])), (&b, bag(&[1, 9], &[0, 1, 2]))];
    let mut out = [0.0; 8];
    let lookup = store.lookup(&bags, &mut out, 4, Some(&ticket)).unwrap();
    assert_eq!(out, [3.0, 30.0, 5.0, 50.0, 1.0, 10.0, 0.0, 0.0]);
    assert_eq!(ticket.rows_held(), 4);
    store.apply(&lookup, &[1.0; 8], 4, &[0.5, 0.5], Some(&ticket)).unwrap();
    assert_eq!(ticket.rows_held(), 0);
    let mut rows = [0.0; 4];
    a.get(&[1, 2], &mut rows).unwrap();
    assert_eq!(rows, [0.0, 9.0, 1.5, 19.5], "row 1 was in both bags");
}

#[test]
fn evaluation_pools_like_a_lookup_and_creates_no_rows() {
    const BAGS: usize = 6000;
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(16 << 20)).unwrap();
    let (a, b) = (store.table("a", &spec(16, SGD)).unwrap(), store.table("b", &spec(16, SGD)).unwrap());
    let born: Vec<u64> = (0..4000).collect();
    a.get_or_init(&born, &mut vec![0.0; 16 * born.len()], None).unwrap();
    // Enough ids for several pieces. No row of the second table exists.
    let offsets: Vec<i64> = (0..=BAGS).map(|bag| (bag * 3 / 2) as i64).collect();
    let ids: Vec<u64> = (0..offsets[BAGS] as u64).map(|position| position * 7 % 4000).collect();
    let bag = |padding, pooling| IdBag { ids: &ids, offsets: &offsets, weights: None, padding, pooling };
    let bags =
        [(&a, bag(None, Pooling::Sum)), (&a, bag(None, Pooling::Mean)), (&b, bag(Some(7), Pooling::Sum))];
    let (mut looked_up, mut evaluated) = (vec![1.0; BAGS * 50], vec![1.0; BAGS * 50]);
    store.lookup(&bags, &mut looked_up, 50, None).unwrap();
    let before = store.stats();
    store.evaluate(&bags, &mut evaluated, 50, None).unwrap();
    assert!(looked_up == evaluated, "equal to the last bit");
    assert_eq!((a.len(), b.len()), (4000, 0));
    let after = store.stats();
    assert_eq!(after.lookups - before.lookups, 3 * ids.len() as u64);
    assert_eq!(after.calls - before.calls, 1);
}

#[test]
fn evaluation_of_dense_tables_equals_their_lookup() {
    const BAGS: usize = 3000;
    const ROWS: u64 = 5000;
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(16 << 20)).unwrap();
    let dense = TableSpec { ids: IdRange::Dense { rows: ROWS }, ..spec(16, SGD) };
    let (whole, partly) = (store.table("whole", &dense).unwrap(), store.table("partly", &dense).unwrap());
    let all: Vec<u64> = (0..ROWS).collect();
    whole.get_or_init(&all, &mut vec![0.0; 16 * all.len()], None).unwrap();
    // A missing row in the last bags: the rows before it were already found.
    partly.get_or_init(&all[1..], &mut vec![0.0; 16 * (all.len() - 1)], None).unwrap();
    let offsets: Vec<i64> = (0..=BAGS).map(|bag| bag as i64 * 2).collect();
    let mut ids: Vec<u64> = (0..2 * BAGS as u64).map(|position| 1 + position * 7 % (ROWS - 1)).collect();
    *ids.last_mut().unwrap() = 0;
    let weights: Vec<f32> = ids.iter().map(|&id| id as f32 / 64.0).collect();
    let bag =
        |weights, padding| IdBag { ids: &ids, offsets: &offsets, weights, padding, pooling: Pooling::Sum };
    let bags =
        [(&whole, bag(None, None)), (&partly, bag(Some(&weights[..]), None)), (&whole, bag(None, None))];
    let (mut looked_up, mut evaluated) = (vec![1.0; BAGS * 48], vec![1.0; BAGS * 48]);
    store.lookup(&bags, &mut looked_up, 48, None).unwrap();
    store.evaluate(&bags, &mut evaluated, 48, None).unwrap();
    assert!(looked_up == evaluated, "equal to the last bit");
    assert_eq!(partly.len() as u64, ROWS - 1);

    let outside = IdBag { ids: &[ROWS], offsets: &[0, 1], ..bag(None, None) };
    let error = store.evaluate(&[(&whole, outside)], &mut [0.0; 16], 16, None).unwrap_err();
    assert!(matches!(error, StoreError::IdRange { id: 5000, rows: ROWS, .. }), "{error}");
}

#[test]
fn a_backward_finds_rows_whose_index_entries_moved_since_the_lookup() {
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(32 << 20)).unwrap();
    let table = store.table("t", &TableSpec { initializer: Initializer::Zeros, ..spec(2, SGD) }).unwrap();
    let ids: Vec<u64> = (0..3000).collect();
    let offsets: Vec<i64> = (0..=ids.len() as i64).collect();
    let bag = IdBag { ids: &ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum };
    let mut out = vec![0.0; 2 * ids.len()];
    for round in 1..=3_u64 {
        let ticket = store.ticket().unwrap();
        let lookup = store.lookup(&[(&table, bag)], &mut out, 2, Some(&ticket)).unwrap();
        if round > 1 {
            // The index grows, and in the last round some of its rows are deleted.
            let others: Vec<u64> = (round * 100_000..round * 100_000 + 20_000).collect();
            table.put(&others, &vec![1.0; 2 * others.len()], None).unwrap();
            table.delete(&others[..10_000]).unwrap();
        }
        let gradients: Vec<f32> = ids.iter().flat_map(|&id| [id as f32, 1.0]).collect();
        store.apply(&lookup, &gradients, 2, &[0.5], Some(&ticket)).unwrap();
        assert_eq!(ticket.rows_held(), 0);
        let mut rows = vec![0.0; 2 * ids.len()];
        table.get(&ids, &mut rows).unwrap();
        let expected: Vec<f32> =
            ids.iter().flat_map(|&id| [-0.5 * id as f32, -0.5].map(|step| step * round as f32)).collect();
        assert!(rows == expected, "round {round}");
    }
}

/// The files of a folder and their bytes.
fn files(folder: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn a_closed_store_writes_nothing_when_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), options(16 << 20)).unwrap();
    let table = store.table("t", &spec(16, SGD)).unwrap();
    let ids: Vec<u64> = (0..5000).collect();
    table.put(&ids, &vec![1.0; 16 * ids.len()], None).unwrap();
    store.checkpoint(&[]).unwrap();
    // Changes for the next checkpoint, which is not made: they stay in buffers.
    table.delete(&ids[..100]).unwrap();
    store.close();
    let closed = files(folder.path());
    drop((table, store));
    assert!(
        closed == files(folder.path()),
        "a process that opened the folder meanwhile would see these writes"
    );
}

#[test]
fn checkpoints_during_a_close_write_nothing_after_the_folder_is_unlocked() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), options(16 << 20)).unwrap();
        let table = store.table("t", &spec(16, SGD)).unwrap();
        let ids: Vec<u64> = (0..5000).collect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let put = table.put(&ids, &vec![1.0; 16 * ids.len()], None);
                        if put.and_then(|()| store.checkpoint(&[("note", b"here")])).is_err() {
                            return;
                        }
                    }
                });
            }
            while store.checkpoint_epoch() < 2 {
                std::thread::yield_now();
            }
            scope.spawn(|| store.close());
            let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
            let lock = loop {
                if let Ok(lock) = volume.lock() {
                    break lock;
                }
                std::thread::yield_now();
            };
            let ours = files(folder.path());
            while !table
                .put(&ids[..1], &[1.0; 16], None)
                .is_err_and(|error| matches!(error, StoreError::Closed))
            {}
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(ours == files(folder.path()), "a checkpoint wrote to a folder after releasing it");
            drop(lock);
        });
    }
}

fn bag<'a>(ids: &'a [u64], offsets: &'a [i64]) -> IdBag<'a> {
    IdBag { ids, offsets, weights: None, padding: None, pooling: Pooling::Sum }
}

/// Numbers of tickets, groups and rows have another meaning in another store. Once a ticket of another store
/// released clocks that steps of this store held.
#[test]
fn tables_tickets_and_lookups_of_another_store_are_refused() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [store, other] = folders.each_ref().map(|path| Store::open(path.path(), options(16 << 20)).unwrap());
    let [table, foreign] = [&store, &other].map(|store| store.table("t", &spec(4, SGD)).unwrap());
    let [own, theirs] = [&store, &other].map(|store| Arc::new(store.ticket().unwrap()));
    let mut out = [0.0; 8];
    let bags = [(&table, bag(&[1, 2], &[0, 2]))];
    let lookup = store.lookup(&bags, &mut out[..4], 4, Some(&own)).unwrap();
    let mixed = [bags[0], (&foreign, bag(&[1], &[0, 1]))];
    let asked = |table| AskedRows { table, ids: &[1], times: &[1] };
    let (rows, all) = ([asked(&table)], [asked(&table), asked(&foreign)]);

    let results = [
        // A ticket.
        table.get_in_step(&[1], &mut out[..4], &theirs),
        table.get_or_init(&[1], &mut out[..4], Some(&theirs)),
        table.get_later(&[1], &theirs).map(drop),
        table.put(&[1], &[0.0; 4], Some(&theirs)),
        table.rmw(&[1], &[0.0; 4], None, Some(&theirs)),
        store.lookup(&bags, &mut out[..4], 4, Some(&theirs)).map(drop),
        store.evaluate(&bags, &mut out[..4], 4, Some(&theirs)),
        store.lookup_rows(&rows, &mut out[..4], Some(&theirs)).map(drop),
        store.evaluate_rows(&rows, &mut out[..4], Some(&theirs)),
        store.apply(&lookup, &[0.0; 4], 4, &[0.5], Some(&theirs)),
        // A table.
        store.lookup(&mixed, &mut out, 8, Some(&own)).map(drop),
        store.lookup(&mixed[1..], &mut out[..4], 4, None).map(drop),
        store.evaluate(&mixed, &mut out, 8, None),
        store.lookup_rows(&all, &mut out, None).map(drop),
        store.evaluate_rows(&all, &mut out, Some(&own)),
        store.lookahead(&[(&table, &[1]), (&foreign, &[1])], Destination::Cache).map(drop),
        // A lookup.
        other.apply(&lookup, &[0.0; 4], 4, &[0.5], Some(&theirs)),
        other.row_gradients(&lookup, &[0.0; 4], 4).map(drop),
    ];
    for (number, result) in results.into_iter().enumerate() {
        let error = result.expect_err(&format!("call {number} accepts an argument of another store"));
        assert!(matches!(error, StoreError::OtherStore { .. }), "call {number}: {error}");
        for folder in &folders {
            let message = error.to_string();
            let location = folder.path().display().to_string();
            assert!(message.contains(&location), "call {number}: {location:?} is missing: {message}");
        }
    }
    assert_eq!(
        (own.rows_held(), theirs.rows_held(), table.steps()),
        (2, 0, 0),
        "no clock was taken and no row changed"
    );
    store.apply(&lookup, &[0.0; 4], 4, &[0.5], Some(&own)).unwrap();
    assert_eq!((own.rows_held(), foreign.len()), (0, 0));

    // A store that was closed and reopened is another store.
    store.close();
    let again = Store::open(folders[0].path(), options(16 << 20)).unwrap();
    let table = again.table("t", &spec(4, SGD)).unwrap();
    let error = table.get_or_init(&[1], &mut out[..4], Some(&own)).unwrap_err();
    assert!(matches!(error, StoreError::OtherStore { .. }), "{error}");
}

#[test]
fn features_of_one_table_with_different_learning_rates_are_refused() {
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(16 << 20)).unwrap();
    let zeros = TableSpec { initializer: Initializer::Zeros, ..spec(4, SGD) };
    let [one, two] = ["one", "two"].map(|name| store.table(name, &zeros).unwrap());
    let ticket = store.ticket().unwrap();
    let bags = [(&one, bag(&[1], &[0, 1])), (&two, bag(&[1], &[0, 1])), (&one, bag(&[2], &[0, 1]))];
    let lookup = store.lookup(&bags, &mut [0.0; 12], 12, Some(&ticket)).unwrap();
    let error = store.apply(&lookup, &[1.0; 12], 12, &[0.5, 0.25, 0.125], Some(&ticket)).unwrap_err();
    assert!(matches!(error, StoreError::MixedRates { first: 0.5, second: 0.125, .. }), "{error}");
    for part in ["\"one\"", "0.5", "0.125"] {
        assert!(error.to_string().contains(part), "{part} is missing: {error}");
    }
    assert_eq!(
        (ticket.rows_held(), one.steps(), two.steps()),
        (3, 0, 0),
        "no row was changed and no clock released"
    );
    store.apply(&lookup, &[1.0; 12], 12, &[0.5, 0.25, 0.5], Some(&ticket)).unwrap();
    let mut rows = [0.0; 8];
    one.get(&[1, 2], &mut rows).unwrap();
    assert_eq!(rows, [-0.5; 8]);
}

/// The stride times the number of earlier bags wraps around to a few floats. If this were accepted, the last
/// bag would be written far outside of the output.
#[test]
fn a_stride_that_wraps_around_is_refused() {
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(16 << 20)).unwrap();
    let table = store.table("t", &TableSpec { staleness: StalenessBound::Infinite, ..spec(4, SGD) }).unwrap();
    let bag = IdBag {
        ids: &[1, 2, 3],
        offsets: &[0, 1, 2, 3],
        weights: None,
        padding: None,
        pooling: Pooling::Sum,
    };
    let stride = 1 << 63;
    let mut out = [0.0_f32; 64];
    let lookup = store.lookup(&[(&table, bag)], &mut out, 4, None).unwrap();
    let errors = [
        store.lookup(&[(&table, bag)], &mut out, stride, None).map(drop).unwrap_err(),
        store.evaluate(&[(&table, bag)], &mut out, stride, None).unwrap_err(),
        store.apply(&lookup, &out, stride, &[0.5], None).unwrap_err(),
        store.row_gradients(&lookup, &out, stride).map(drop).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("row_stride must be") && text.contains(&stride.to_string()), "{text}");
    }
}

#[test]
fn too_many_ids_in_one_call_are_refused() {
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(16 << 20)).unwrap();
    let table = store.table("t", &TableSpec { staleness: StalenessBound::Infinite, ..spec(4, SGD) }).unwrap();
    // One array for all features: 2^31 ids without the memory for them.
    let (ids, offsets) = (vec![7; 1 << 20], [0, 1 << 20]);
    let bag = IdBag { ids: &ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum };
    let bags = vec![(&table, bag); 1 << 11];
    let mut out = vec![0.0_f32; bags.len() * 4];
    let stride = out.len();
    for error in [
        store.lookup(&bags, &mut out, stride, None).map(drop).unwrap_err(),
        store.evaluate(&bags, &mut out, stride, None).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Option { option: "ids", .. }), "{error}");
    }
}

/// Cold reads of 2000 rows that are changed in every round, in rounds after the first. Memory has room for about
/// 4000 rows, and every round changes 1000 others with `change`.
fn cold_reads_of_hot_rows(change: impl Fn(&Table, &[u64], &mut [f32])) -> u64 {
    const DIM: usize = 256;
    let options = StoreOptions {
        row_memory: Some(4 << 20),
        background: Background::Turns { incarnation: 1 },
        threads: 1,
        ..options(32 << 20)
    };
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options).unwrap();
    let table = store.table("t", &spec(DIM as u32, SGD)).unwrap();
    let mut values = vec![0.5; 2000 * DIM];
    let others: Vec<u64> = (2000..32_000).collect();
    let hot: Vec<u64> = (0..2000).collect();
    others.chunks(1000).for_each(|ids| table.put(ids, &values[..ids.len() * DIM], None).unwrap());
    let mut reads = 0;
    for (round, others) in others.chunks(1000).enumerate() {
        let before = store.stats().cold_reads;
        table.rmw(&hot, &values, None, None).unwrap();
        if round > 0 {
            reads += store.stats().cold_reads - before;
        }
        change(&table, others, &mut values[..1000 * DIM]);
    }
    assert!(store.stats().cold_reads > 20_000, "the other rows are cold");
    reads
}

#[test]
fn rows_that_are_changed_often_stay_in_memory() {
    let reads = cold_reads_of_hot_rows(|table, ids, values| table.rmw(ids, values, None, None).unwrap());
    assert!(reads < 2000, "{reads} reads of hot rows");
}

#[test]
fn a_change_of_a_row_that_was_just_read_is_no_further_use() {
    let reads = cold_reads_of_hot_rows(|table, ids, values| {
        table.get(ids, values).unwrap();
        table.put(ids, values, None).unwrap();
    });
    assert!(reads < 2000, "{reads} reads of hot rows");
}
