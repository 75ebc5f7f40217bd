//! Damage and misuse.
//!
//! What could break: damaged bytes are returned as rows, a call panics instead of returning an error, a
//! failed write is forgotten, a wrong argument changes rows. Files of a real folder get flipped bits and are
//! truncated, and devices fail by rule. The store must return the stored rows, or an error that says what
//! failed and where. It must open again at its last checkpoint.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use rowmill_io::DeviceError;
use rowmill_store::*;
use rowmill_testkit::{Fault, FaultyVolume, When};

const ROWS: u64 = 70_000;

fn value(id: u64) -> f32 {
    id as f32 + 0.5
}

fn four_floats() -> TableSpec {
    TableSpec { staleness: StalenessBound::Infinite, ..bound(0) }
}

/// A store with a snapshot of its index, a delta and an attachment.
fn fill(folder: &Path) {
    // Without history, which opening a store does not read; `changes.rs` damages history.
    let store = Store::open(folder, StoreOptions { history: 0, ..options(None) }).unwrap();
    let table = store.table("t", &four_floats()).unwrap();
    for from in (0..ROWS).step_by(10_000) {
        let ids: Vec<u64> = (from..from + 10_000).collect();
        let values: Vec<f32> = ids.iter().flat_map(|&id| [value(id); 4]).collect();
        table.put(&ids, &values, None).unwrap();
    }
    for _ in 0..3 {
        store.checkpoint(&[("notes", &[7; 5000])]).unwrap();
        table.put(&[1], &[value(1); 4], None).unwrap();
    }
    store.checkpoint(&[("notes", &[7; 5000])]).unwrap();
}

/// Open a folder and read everything. Returns whether everything equals what was stored.
fn read_all(folder: &Path) -> Result<bool, StoreError> {
    let store = Store::open(folder, StoreOptions { read_only: true, ..options(None) })?;
    let table = store.open_table("t")?;
    let ids: Vec<u64> = (0..ROWS).collect();
    let mut rows = vec![0.0; ids.len() * 4];
    table.get(&ids, &mut rows)?;
    let attached = store.attachment("notes")?;
    let right = ids.iter().zip(rows.chunks(4)).all(|(&id, row)| *row == [value(id); 4]);
    Ok(right && attached.as_deref() == Some(&[7; 5000]))
}

#[test]
fn damaged_files_are_refused_by_name_and_never_returned_as_rows() {
    let original = tempfile::tempdir().unwrap();
    fill(original.path());
    assert!(read_all(original.path()).unwrap());
    let mut names: Vec<String> = original
        .path()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| {
        name == "MANIFEST"
            || name.starts_with("index-")
            || name.contains("notes")
            || name.starts_with("group-")
    });
    for kind in ["MANIFEST", ".snapshot", ".delta", "notes", ".log"] {
        assert!(names.iter().any(|name| name.contains(kind)), "no {kind} among {names:?}");
    }
    let mut detected = 0;
    for name in &names {
        let path = original.path().join(name);
        let intact = std::fs::read(&path).unwrap();
        // The delta of the current epoch and parts of the logs do not belong to the checkpoint.
        let is_log = name.starts_with("group-");
        let manifest = std::fs::read_to_string(original.path().join("MANIFEST")).unwrap();
        if name != "MANIFEST" && !manifest.contains(name.as_str()) {
            continue;
        }
        for trial in 0..8 {
            let mut bytes = intact.clone();
            let place =
                [0, 9, intact.len() / 3, intact.len() / 2, intact.len() - 1][trial % 5].min(intact.len() - 1);
            match trial {
                0..5 => bytes[place] ^= 1 << trial,
                5 => bytes.truncate(intact.len() / 2),
                6 => bytes.truncate(1),
                _ => bytes.clear(),
            }
            std::fs::write(&path, &bytes).unwrap();
            match read_all(original.path()) {
                Ok(right) => {
                    assert!(right, "{name}, damage {trial}: wrong data");
                    assert!(is_log, "{name}, damage {trial} was not noticed");
                }
                Err(error) => {
                    detected += 1;
                    let message = error.to_string();
                    let named =
                        if is_log { message.contains("group") } else { message.contains(name.as_str()) };
                    assert!(named, "{name}, damage {trial}: {message}");
                    assert!(
                        matches!(error, StoreError::Corrupt { .. }) || (is_log && trial >= 5),
                        "{name}, damage {trial}: {error:?}"
                    );
                }
            }
        }
        std::fs::write(&path, &intact).unwrap();
    }
    assert!(detected >= 4 * 8 + 3, "only {detected} damages were noticed");
    assert!(read_all(original.path()).unwrap());
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let manifest = std::fs::read_to_string(folder.path().join("MANIFEST")).unwrap();
    for entry in folder.path().read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("index-") || !manifest.contains(&name) {
            continue;
        }
        let aside = path.with_extension("aside");
        std::fs::rename(&path, &aside).unwrap();
        let message = read_all(folder.path()).unwrap_err().to_string();
        assert!(message.contains(&name), "{message}");
        std::fs::rename(&aside, &path).unwrap();
    }
}

#[test]
fn a_newer_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let path = folder.path().join("MANIFEST");
    std::fs::write(&path, "rowmill-manifest 9 00000000 0\n").unwrap();
    match Store::open(folder.path(), options(None)).unwrap_err() {
        StoreError::Newer { location, found: 9, supported: 5 } => {
            assert!(location.contains(folder.path().to_str().unwrap()), "{location}");
        }
        error => panic!("{error}"),
    }
}

#[test]
fn a_folder_is_written_by_one_store_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), options(None)).unwrap();
    store.table("t", &bound(0)).unwrap();
    store.checkpoint(&[]).unwrap();
    match Store::open(folder.path(), options(None)).unwrap_err() {
        StoreError::Device(DeviceError::Locked { name, holder }) => {
            assert_eq!(holder, std::process::id());
            assert!(name.contains(folder.path().to_str().unwrap()), "{name}");
        }
        error => panic!("{error}"),
    }
    let reader = Store::open(folder.path(), StoreOptions { read_only: true, ..options(None) }).unwrap();
    assert_eq!(reader.table_names(), ["t"]);
    store.close();
    Store::open(folder.path(), options(None)).unwrap();
}

/// A reader reads its checkpoint while the writer makes new ones. Once the space of that checkpoint is
/// reused, reads return an error that says to reopen the store, and never rows of another checkpoint.
#[test]
fn a_reader_of_a_replaced_checkpoint_gets_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(Some(96 << 10));
    let store = Store::open(folder.path(), options.clone()).unwrap();
    let table = store.table("t", &spec(16, SGD)).unwrap();
    let ids: Vec<u64> = (0..4000).collect();
    let write = |round: u64| {
        for ids in ids.chunks(500) {
            let values: Vec<f32> = ids.iter().flat_map(|&id| [value(id + round * 10_000); 16]).collect();
            table.put(ids, &values, None).unwrap();
        }
        store.checkpoint(&[]).unwrap();
    };
    write(0);
    let read_only = StoreOptions { read_only: true, ..options };
    let reader = Store::open(folder.path(), read_only.clone()).unwrap();
    let old = reader.open_table("t").unwrap();
    let told = (1..100).find_map(|round| {
        write(round);
        let mut row = [0.0; 16];
        ids.iter().skip(round as usize % 37).step_by(37).find_map(|&id| match old.get(&[id], &mut row) {
            Ok(()) => {
                assert_eq!(row, [value(id); 16], "row {id} of another checkpoint");
                None
            }
            Err(error) => Some(error),
        })
    });
    assert!(matches!(told, Some(StoreError::Superseded)), "{told:?}");
    let again = Store::open(folder.path(), read_only).unwrap().open_table("t").unwrap();
    again.get(&[1], &mut [0.0; 16]).unwrap();
}

/// Readers open the store while the writer makes one checkpoint after the other.
#[test]
fn a_reader_may_open_at_any_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), options(None)).unwrap();
    let table = store.table("t", &spec(16, SGD)).unwrap();
    table.put(&[1], &[1.0; 16], None).unwrap();
    store.checkpoint(&[]).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..200_u16 {
                table.put(&[1], &[f32::from(round); 16], None).unwrap();
                store.checkpoint(&[]).unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            let reader = StoreOptions { read_only: true, ..options(None) };
            Store::open(folder.path(), reader).unwrap();
        }
    });
}

/// A volume with 4000 rows of 64 bytes in its last checkpoint, and options for a store with less memory.
fn faulty() -> (FaultyVolume, StoreOptions, Model) {
    let volume = FaultyVolume::new(Arc::new(MemoryVolume::new()), 5);
    let options = options(Some(96 << 10));
    let store = open(&volume, &options);
    let table = store.table("t", &spec(16, SGD)).unwrap();
    let mut model = Model::new(spec(16, SGD), 0);
    for from in (0..4000).step_by(500) {
        let ids: Vec<u64> = (from..from + 500).collect();
        let values: Vec<f32> = ids.iter().flat_map(|&id| [value(id); 16]).collect();
        table.put(&ids, &values, None).unwrap();
        model.put(&ids, &values);
    }
    store.checkpoint(&[]).unwrap();
    (volume, options, model)
}

/// Put rows that are not in the checkpoint until a write fails.
fn put_until_it_fails(table: &Table) -> StoreError {
    for from in (100_000..200_000).step_by(100) {
        let ids: Vec<u64> = (from..from + 100).collect();
        if let Err(error) = table.put(&ids, &[0.0; 1600], None) {
            return error;
        }
    }
    panic!("no write failed");
}

#[test]
fn a_full_device_refuses_writes_and_keeps_reads_and_the_checkpoint() {
    for fault in [Fault::Full, Fault::WriteError] {
        let (volume, options, model) = faulty();
        {
            let store = open(&volume, &options);
            let table = store.open_table("t").unwrap();
            volume.inject_on("group-0.log", fault, When::Always);
            let error = put_until_it_fails(&table);
            assert!(matches!(error, StoreError::Full { .. } | StoreError::Poisoned { .. }), "{error:?}");
            let message = error.to_string();
            assert!(message.contains("group") && message.contains("reopen"), "{message}");
            // All rows of the checkpoint can be read repeatedly, whatever is in memory now.
            for _ in 0..3 {
                for ids in model.sorted_ids().chunks(700) {
                    let mut rows = vec![0.0; ids.len() * 16];
                    table.get(ids, &mut rows).unwrap();
                    assert!(ids.iter().zip(rows.chunks(16)).all(|(&id, row)| *row == [value(id); 16]));
                }
                let bag = |ids| IdBag {
                    ids,
                    offsets: &[0, 2],
                    weights: None,
                    padding: None,
                    pooling: Pooling::Sum,
                };
                let mut out = [0.0; 16];
                store.lookup(&[(&table, bag(&[9, 3999]))], &mut out, 16, None).unwrap();
                assert_eq!(out, [value(9) + value(3999); 16]);
            }
            volume.heal();
            let poisoned = |result: Result<(), StoreError>| {
                let error = result.unwrap_err();
                assert!(matches!(error, StoreError::Poisoned { .. }), "{error:?}");
            };
            poisoned(table.put(&[1], &[0.0; 16], None));
            poisoned(table.rmw(&[1], &[0.0; 16], None, None));
            poisoned(table.delete(&[1]).map(drop));
            poisoned(table.get_or_init(&[1], &mut [0.0; 16], None));
            poisoned(store.checkpoint(&[]).map(drop));
            poisoned(store.ticket().map(drop));
        }
        let store = open(&volume, &options);
        model.check(&store.open_table("t").unwrap());
        store.checkpoint(&[]).unwrap();
    }
}

#[test]
fn a_failed_sync_poisons_the_store_and_keeps_the_previous_checkpoint() {
    for fault in [Fault::SyncError, Fault::RenameError] {
        let (volume, options, model) = faulty();
        {
            let store = open(&volume, &options);
            let table = store.open_table("t").unwrap();
            table.rmw(&[1, 2], &[1.0; 32], None, None).unwrap();
            volume.inject(fault, When::Nth(1));
            store.checkpoint(&[]).unwrap_err();
            assert_eq!(volume.fired(fault), 1);
            assert!(matches!(table.put(&[1], &[0.0; 16], None), Err(StoreError::Poisoned { .. })));
            assert!(matches!(store.checkpoint(&[]), Err(StoreError::Poisoned { .. })));
        }
        volume.heal();
        model.check(&open(&volume, &options).open_table("t").unwrap());
    }
}

#[test]
fn failed_and_corrupted_reads_are_errors_and_other_rows_can_be_read() {
    let (volume, options, model) = faulty();
    let store = open(&volume, &options);
    let table = store.open_table("t").unwrap();
    let mut row = [0.0; 16];
    volume.inject_on("group-0.log", Fault::ReadError, When::Nth(1));
    let error = table.get(&[1234], &mut row).unwrap_err();
    assert!(matches!(error, StoreError::Device(_)) && error.to_string().contains("group"), "{error:?}");
    table.get(&[3456], &mut row).unwrap();
    assert_eq!(row, [value(3456); 16]);
    table.get(&[1234], &mut row).unwrap();
    assert_eq!(row, [value(1234); 16]);
    for fault in [Fault::BitFlip, Fault::MisdirectedRead] {
        volume.heal();
        volume.inject_on("group-0.log", fault, When::OneIn(3));
        let (mut read, mut refused) = (0, 0);
        for id in (0..4000).step_by(7) {
            match table.get(&[id], &mut row) {
                Ok(()) => {
                    assert_eq!(row, [value(id); 16], "row {id} with {fault:?}");
                    read += 1;
                }
                Err(StoreError::Corrupt { what }) => {
                    assert!(what.contains("group 0") && what.contains("checksum"), "{what}");
                    refused += 1;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        assert!(read > 20 && refused > 20, "{fault:?}: {read} rows read, {refused} refused");
    }
    volume.heal();
    assert!(store.stats().corrupt_blocks > 0);
    model.check(&table);
}

#[test]
fn nan_and_infinite_arguments_change_nothing() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &bound(0)).unwrap();
    let mut model = Model::new(bound(0), 0);
    table.rmw(&[1, 2], &[0.5; 8], None, None).unwrap();
    model.rmw(&[1, 2], &[0.5; 8], 0.5);
    let refuse = |result: Result<(), StoreError>, argument: &str, position: usize| match result.unwrap_err() {
        StoreError::NotFinite { argument: found, table, position: at, .. } => {
            assert_eq!((found, table.as_str(), at), (argument, "t", position));
        }
        error => panic!("{error}"),
    };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = [1.0; 8];
        values[6] = bad;
        refuse(table.rmw(&[1, 9], &values, None, None), "gradients", 6);
        refuse(table.put(&[1, 9], &values, None), "values", 6);
        refuse(table.rmw(&[1], &[1.0; 4], Some(bad), None), "lr", 0);
        let bag =
            IdBag { ids: &[1, 9], offsets: &[0, 1, 2], weights: None, padding: None, pooling: Pooling::Sum };
        let lookup = store.lookup(&[(&table, bag)], &mut [0.0; 8], 4, None).unwrap();
        refuse(store.apply(&lookup, &values, 4, &[0.5], None), "gradients", 6);
        refuse(store.apply(&lookup, &[1.0; 8], 4, &[bad], None), "lr", 0);
    }
    refuse(table.rmw(&[1], &[1.0; 4], Some(-1.0), None), "lr", 0);
    model.check(&table);
}

type Change = fn(&mut TableSpec);

#[test]
fn a_table_opens_only_with_its_stored_spec() {
    let store = open(&MemoryVolume::new(), &options(None));
    let made = spec(4, ADAGRAD);
    store.table("t", &made).unwrap();
    let other = |change: Change| {
        let mut spec = made;
        change(&mut spec);
        store.table("t", &spec)
    };
    let fields: [(&str, Change); 4] = [
        ("dim", |spec| spec.dim = 8),
        ("optimizer", |spec| spec.optimizer = SGD),
        ("initializer", |spec| spec.initializer = Initializer::Zeros),
        ("ids", |spec| spec.ids = IdRange::Dense { rows: 10 }),
    ];
    for (name, change) in fields {
        match other(change).unwrap_err() {
            StoreError::SpecMismatch { table, field, .. } => assert_eq!((table.as_str(), field), ("t", name)),
            error => panic!("{error}"),
        }
    }
    other(|spec| spec.optimizer = spec.optimizer.with_lr(0.1)).unwrap();
    other(|spec| spec.staleness = StalenessBound::Steps(3)).unwrap();
    assert!(matches!(other(|spec| spec.dim = 0), Err(StoreError::Spec { .. })));
    let error = store.open_table("u").unwrap_err();
    assert!(error.to_string().contains("\"u\"") && error.to_string().contains("it has: t"), "{error}");
}

#[test]
fn ids_outside_a_dense_table_are_refused_everywhere() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &TableSpec { ids: IdRange::Dense { rows: 100 }, ..bound(0) }).unwrap();
    let ticket = store.ticket().unwrap();
    let refuse = |result: Result<(), StoreError>| match result.unwrap_err() {
        StoreError::IdRange { table, id: 100, rows: 100 } => assert_eq!(table, "t"),
        error => panic!("{error}"),
    };
    let ids = [99, 100];
    refuse(table.get(&ids, &mut [0.0; 8]));
    refuse(table.get_state(&ids, &mut []));
    refuse(table.get_or_init(&ids, &mut [0.0; 8], Some(&ticket)));
    refuse(table.put(&ids, &[0.0; 8], None));
    refuse(table.rmw(&ids, &[0.0; 8], None, None));
    refuse(table.delete(&ids).map(drop));
    refuse(table.lookahead(&ids, Destination::Cache).map(drop));
    let bag = |padding| IdBag { ids: &ids, offsets: &[0, 2], weights: None, padding, pooling: Pooling::Sum };
    refuse(store.lookup(&[(&table, bag(None))], &mut [0.0; 4], 4, Some(&ticket)).map(drop));
    assert_eq!((table.len(), ticket.rows_held()), (0, 0));
    store.lookup(&[(&table, bag(Some(100)))], &mut [0.0; 4], 4, Some(&ticket)).unwrap();
    assert_eq!(table.contains(&[99, 98]).unwrap(), [true, false]);
}

#[test]
fn errors_for_wrong_lengths_name_the_right_one() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &bound(0)).unwrap();
    let refuse = |result: Result<(), StoreError>| match result.unwrap_err() {
        StoreError::Length { got: 7, expected: 8, .. } => {}
        error => panic!("{error}"),
    };
    refuse(table.get(&[1, 2], &mut [0.0; 7]));
    refuse(table.get_or_init(&[1, 2], &mut [0.0; 7], None));
    refuse(table.put(&[1, 2], &[0.0; 7], None));
    refuse(table.rmw(&[1, 2], &[0.0; 7], None, None));
    let bag =
        IdBag { ids: &[1, 2], offsets: &[0, 1, 2], weights: None, padding: None, pooling: Pooling::Sum };
    refuse(store.lookup(&[(&table, bag)], &mut [0.0; 7], 4, None).map(drop));
    let other = store.table("u", &spec(8, SGD)).unwrap();
    let error = store.lookup(&[(&table, bag), (&other, bag)], &mut [0.0; 64], 12, None).unwrap_err();
    assert!(matches!(error, StoreError::MixedGroups { .. }));
    assert!(table.is_empty());
}

#[test]
fn calls_on_a_closed_store_fail() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &bound(0)).unwrap();
    let ticket = store.ticket().unwrap();
    store.close();
    store.close();
    let closed = |result: Result<(), StoreError>| assert!(matches!(result, Err(StoreError::Closed)));
    closed(table.get(&[1], &mut [0.0; 4]));
    closed(table.get_or_init(&[1], &mut [0.0; 4], Some(&ticket)));
    closed(table.put(&[1], &[0.0; 4], Some(&ticket)));
    closed(table.rmw(&[1], &[0.0; 4], None, None));
    closed(table.delete(&[1]).map(drop));
    closed(table.contains(&[1]).map(drop));
    closed(table.lookahead(&[1], Destination::Cache).map(drop));
    closed(table.scan(8, |_, _| true));
    closed(store.checkpoint(&[]).map(drop));
    closed(store.ticket().map(drop));
    closed(store.table("u", &bound(0)).map(drop));
    closed(store.open_table("t").map(drop));
    closed(store.attachment("a").map(drop));
}

#[test]
fn a_reader_refuses_every_change() {
    let volume = MemoryVolume::new();
    {
        let store = open(&volume, &options(None));
        store.table("t", &bound(0)).unwrap().put(&[1], &[2.0; 4], None).unwrap();
        store.checkpoint(&[]).unwrap();
    }
    let store = open(&volume, &StoreOptions { read_only: true, ..options(None) });
    assert!(store.is_read_only());
    let table = store.open_table("t").unwrap();
    let refuse = |result: Result<(), StoreError>| assert!(matches!(result, Err(StoreError::ReadOnly { .. })));
    refuse(table.put(&[1], &[0.0; 4], None));
    refuse(table.rmw(&[1], &[0.0; 4], None, None));
    refuse(table.delete(&[1]).map(drop));
    refuse(table.get_or_init(&[2], &mut [0.0; 4], None));
    refuse(store.checkpoint(&[]).map(drop));
    refuse(store.ticket().map(drop));
    refuse(store.table("u", &bound(0)).map(drop));
    let mut rows = [0.0; 4];
    table.get(&[1], &mut rows).unwrap();
    assert_eq!(rows, [2.0; 4]);
}

#[test]
fn the_number_of_open_steps_is_limited() {
    let store = open(&MemoryVolume::new(), &options(None));
    let mut tickets = Vec::new();
    let error = loop {
        match store.ticket() {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, StoreError::TooManySteps { open, limit } if open == limit && limit == tickets.len())
    );
    tickets.pop();
    store.ticket().unwrap();
}

#[test]
fn the_error_for_too_little_memory_names_the_sufficient_amount() {
    let volume = MemoryVolume::new();
    let tiny = StoreOptions { memory: 1 << 20, ..options(None) };
    let message = Store::open_volume(Arc::new(volume.clone()), tiny).unwrap_err().to_string();
    assert!(message.contains("16777216"), "{message}");

    let store = open(&volume, &options(Some(1 << 10)));
    let mut needs = Vec::new();
    for _ in 0..3 {
        let error = store.table("t", &spec(16, SGD)).unwrap_err();
        let StoreError::MemoryTooSmall { given, needed, .. } = error else { panic!("{error}") };
        assert!(given == 1 << 10 && needed > given, "{error}");
        needs.push(needed);
    }
    let needed = needs[0];
    assert_eq!(needs, [needed; 3], "asking again costs nothing");
    drop(store);
    open(&volume, &options(Some(needed))).table("t", &spec(16, SGD)).unwrap();
}

/// The index of created rows grows until the budget cannot hold it. The result is an error with the
/// sufficient budget; the process does not exceed its budget.
#[test]
fn an_index_beyond_the_budget_is_refused_and_rows_can_still_be_read() {
    let options = StoreOptions { memory: 16 << 20, wait_deadline: Duration::from_secs(1), ..options(None) };
    let store = open(&MemoryVolume::new(), &options);
    let table = store.table("t", &TableSpec { dim: 1, ..four_floats() }).unwrap();
    let mut born = 0_u64;
    let error = loop {
        let ids: Vec<u64> = (born..born + 20_000).collect();
        match table.put(&ids, &vec![1.0; ids.len()], None) {
            Ok(()) => born += 20_000,
            Err(error) => break error,
        }
        assert!(born < 4_000_000, "16 MiB cannot hold an index of {born} rows");
    };
    let StoreError::MemoryTooSmall { given, needed, .. } = error else { panic!("{error}") };
    assert!(given == 16 << 20 && needed > given, "{error}");
    let mut rows = vec![0.0; 1000];
    table.get(&(0..1000).collect::<Vec<_>>(), &mut rows).unwrap();
    assert_eq!(rows, vec![1.0; 1000]);
    table.put(&[5], &[2.0], None).unwrap();
    assert!(store.stats().index_bytes <= 16 << 20);
}
