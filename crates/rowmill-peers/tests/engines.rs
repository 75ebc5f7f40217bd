//! Compares every engine of this build with a map: put, get, change, missing rows, reopening, random
//! operations, many threads, reads ahead, and the memory limit.
#![cfg(any(feature = "rocksdb", feature = "lmdb", feature = "wiredtiger", feature = "faster"))]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rowmill_peers::{Engine, MemoryLimit, Options, PeerKind, ReadAhead, open};
use rowmill_testkit::resident_bytes;

const ROW_FLOATS: usize = 16;
/// The least memory that FASTER accepts.
const MEMORY: u64 = 64 << 20;
/// Set in the process that tests one engine alone.
const ALONE: &str = "ROWMILL_PEER_ALONE";

/// One engine at a time: the memory limit of one engine applies to the process.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engines of this build; LMDB only if a control group can limit it.
fn kinds() -> impl Iterator<Item = PeerKind> {
    PeerKind::ALL.into_iter().filter(|kind| kind.is_built()).filter(|kind| {
        let limited = if *kind == PeerKind::Lmdb { MemoryLimit::new(1 << 30).map(drop) } else { Ok(()) };
        limited.inspect_err(|error| eprintln!("skipped {}: {error}", kind.name())).is_ok()
    })
}

fn engine(kind: PeerKind, folder: &Path) -> Box<dyn Engine> {
    let options = Options {
        folder: folder.join(kind.name()),
        rows: 1 << 16,
        row_bytes: ROW_FLOATS * size_of::<f32>(),
        memory: MEMORY,
        changes: true,
    };
    open(kind, &options).unwrap_or_else(|error| panic!("{}: {error}", kind.name()))
}

/// A row that differs for every key and version.
fn row(key: u64, version: u64) -> Vec<f32> {
    (0..ROW_FLOATS).map(|float| (key * 1000 + version * 17) as f32 + float as f32 * 0.25).collect()
}

fn rows(keys: &[u64], version: u64) -> Vec<f32> {
    keys.iter().flat_map(|key| row(*key, version)).collect()
}

fn get(engine: &dyn Engine, keys: &[u64]) -> Vec<f32> {
    let mut found = vec![f32::NAN; keys.len() * ROW_FLOATS];
    engine.get(keys, &mut found).unwrap();
    found
}

#[test]
fn rows_can_be_put_read_changed_and_replaced() {
    let _alone = alone();
    for kind in kinds() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(kind, folder.path());
        let keys: Vec<u64> = (0..5000).map(|number| number * 3).collect();
        engine.append(&keys, &rows(&keys, 0)).unwrap();
        engine.settle().unwrap();
        let some: Vec<u64> = keys.iter().copied().step_by(7).collect();
        engine.put(&some, &rows(&some, 1)).unwrap();
        let changed: Vec<u64> = keys.iter().copied().skip(1).step_by(7).collect();
        let mut seen = 0;
        engine
            .rmw(&changed, &mut |position, found| {
                assert_eq!(found, row(changed[position], 0));
                found.copy_from_slice(&row(changed[position], 2));
                seen += 1;
            })
            .unwrap();
        assert!(seen >= changed.len());
        for (position, key) in keys.iter().rev().enumerate() {
            let position = keys.len() - 1 - position;
            let version = [1, 2, 0, 0, 0, 0, 0][position % 7];
            assert_eq!(get(&*engine, &[*key]), row(*key, version), "{} key {key}", kind.name());
        }
        let wanted = [some[3], changed[1], some[0], changed[1]];
        let found = get(&*engine, &wanted);
        let expected: Vec<f32> =
            wanted.iter().zip([1, 2, 1, 2]).flat_map(|(key, version)| row(*key, version)).collect();
        assert_eq!(found, expected, "{}", kind.name());
    }
}

#[test]
fn a_missing_row_is_an_error_and_is_not_created() {
    let _alone = alone();
    for kind in kinds() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(kind, folder.path());
        engine.append(&[1, 2, 9], &rows(&[1, 2, 9], 0)).unwrap();
        let missing = |result: Result<(), rowmill_peers::PeerError>| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("1 of the requested rows are missing"), "{error}");
        };
        missing(engine.get(&[1, 5], &mut [0.0; 2 * ROW_FLOATS]));
        missing(engine.read_ahead(&[2, 5]));
        missing(engine.rmw(&[1, 5, 9], &mut |position, _| assert_ne!(position, 1)));
        missing(engine.get(&[5], &mut [0.0; ROW_FLOATS]));
        engine.put(&[5], &row(5, 3)).unwrap();
        assert_eq!(get(&*engine, &[5, 9]), [row(5, 3), row(9, 0)].concat(), "{}", kind.name());
    }
}

#[test]
fn rows_survive_reopening_the_folder() {
    let _alone = alone();
    for kind in kinds() {
        let folder = tempfile::tempdir().unwrap();
        let keys: Vec<u64> = (0..30_000).collect();
        let first = engine(kind, folder.path());
        first.append(&keys, &rows(&keys, 0)).unwrap();
        first.put(&keys[500..700], &rows(&keys[500..700], 1)).unwrap();
        drop(first);
        for round in 2..4 {
            let again = engine(kind, folder.path());
            assert_eq!(
                get(&*again, &keys[400..501]),
                [rows(&keys[400..500], 0), row(500, round - 1)].concat()
            );
            assert_eq!(get(&*again, &keys[29_000..]), rows(&keys[29_000..], 0), "{}", kind.name());
            again.put(&keys[500..700], &rows(&keys[500..700], round)).unwrap();
        }
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Put(Vec<u64>),
    Add(Vec<u64>),
    Get(Vec<u64>),
    ReadAhead(Vec<u64>),
    Settle,
    Reopen,
}

fn operation() -> impl Strategy<Value = Operation> {
    let keys = || {
        // Keys of the whole range, many of them repeated between calls.
        let key = prop_oneof![4 => 0..200_u64, 1 => (0..40_u64).prop_map(|key| (key << 40) | 7)];
        proptest::collection::btree_set(key, 1..40).prop_map(|keys| keys.into_iter().collect::<Vec<_>>())
    };
    prop_oneof![
        6 => keys().prop_map(Operation::Put),
        4 => keys().prop_map(Operation::Add),
        6 => keys().prop_map(Operation::Get),
        3 => keys().prop_map(Operation::ReadAhead),
        1 => Just(Operation::Settle),
        1 => Just(Operation::Reopen),
    ]
}

#[test]
fn random_operations_give_the_results_of_a_map() {
    let _alone = alone();
    for kind in kinds() {
        let config = Config { cases: 4, failure_persistence: None, ..Config::default() };
        let operations = proptest::collection::vec(operation(), 1..60);
        TestRunner::new(config).run(&operations, |operations| check(kind, &operations)).unwrap();
    }
}

fn check(kind: PeerKind, operations: &[Operation]) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let mut own = Some(engine(kind, folder.path()));
    let mut map = BTreeMap::<u64, Vec<f32>>::new();
    for (version, operation) in operations.iter().enumerate() {
        let engine_now = own.as_deref().expect("it is open");
        match operation {
            Operation::Put(keys) => {
                engine_now.put(keys, &rows(keys, version as u64)).unwrap();
                map.extend(keys.iter().map(|key| (*key, row(*key, version as u64))));
            }
            Operation::Add(keys) => {
                let there: Vec<u64> = keys.iter().copied().filter(|key| map.contains_key(key)).collect();
                engine_now.rmw(&there, &mut |_, row| row.iter_mut().for_each(|value| *value += 2.0)).unwrap();
                for key in there {
                    map.get_mut(&key).unwrap().iter_mut().for_each(|value| *value += 2.0);
                }
            }
            Operation::Get(keys) => {
                let mut found = vec![0.0; keys.len() * ROW_FLOATS];
                let result = engine_now.get(keys, &mut found);
                let expected: Vec<Option<&Vec<f32>>> = keys.iter().map(|key| map.get(key)).collect();
                prop_assert_eq!(result.is_ok(), expected.iter().all(Option::is_some));
                if result.is_ok() {
                    for (found, expected) in found.chunks(ROW_FLOATS).zip(expected) {
                        prop_assert_eq!(found, expected.unwrap());
                    }
                }
            }
            Operation::ReadAhead(keys) => {
                let there = keys.iter().all(|key| map.contains_key(key));
                prop_assert_eq!(engine_now.read_ahead(keys).is_ok(), there);
            }
            Operation::Settle => engine_now.settle().unwrap(),
            Operation::Reopen => {
                drop(own.take());
                own = Some(engine(kind, folder.path()));
            }
        }
    }
    Ok(())
}

#[test]
fn threads_share_an_engine_while_rows_are_read_ahead() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 20;
    let _alone = alone();
    for kind in kinds() {
        let folder = tempfile::tempdir().unwrap();
        let engine: Arc<dyn Engine> = engine(kind, folder.path()).into();
        let keys: Vec<u64> = (0..8000).collect();
        engine.append(&keys, &rows(&keys, 0)).unwrap();
        let ahead = ReadAhead::start(&engine, 2, 4000);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (engine, ahead, keys) = (&engine, &ahead, &keys);
                scope.spawn(move || {
                    // Each thread changes its own rows and reads all rows.
                    let own: Vec<u64> = keys.iter().copied().filter(|key| key % THREADS == thread).collect();
                    for round in 1..=ROUNDS {
                        ahead.announce(&keys[..2000], round);
                        if thread == 0 {
                            ahead.begin_step().unwrap();
                        }
                        engine.rmw(&own, &mut |_, row| row[0] += 1.0).unwrap();
                        let found = get(&**engine, &own);
                        for (row, key) in found.chunks(ROW_FLOATS).zip(&own) {
                            assert_eq!(row[0], (key * 1000 + round) as f32, "{} key {key}", kind.name());
                        }
                        get(&**engine, &keys[..1000]);
                    }
                });
            }
        });
        ahead.wait().unwrap();
        engine.settle().unwrap();
        for (found, key) in get(&*engine, &keys).chunks(ROW_FLOATS).zip(&keys) {
            assert_eq!(found[0], (key * 1000 + ROUNDS) as f32);
            assert_eq!(found[1..], row(*key, 0)[1..]);
        }
    }
}

#[test]
fn memory_stays_within_its_limit() {
    let _alone = alone();
    if let Ok(name) = std::env::var(ALONE) {
        return fill_beyond_memory(PeerKind::parse(&name).unwrap());
    }
    for kind in kinds() {
        let done = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory_stays_within_its_limit", "--nocapture"])
            .env(ALONE, kind.name())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr) + String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{}: {said}", kind.name());
    }
}

/// Writes four times the memory in rows twice, and reads them. The process may grow by the memory, plus room
/// for other allocations of an engine.
fn fill_beyond_memory(kind: PeerKind) {
    const BESIDE: u64 = 36 << 20;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let row_bytes = 512;
    let count = 4 * MEMORY / row_bytes;
    let options = Options {
        folder: folder.path().to_owned(),
        rows: count,
        row_bytes: row_bytes as usize,
        memory: MEMORY,
        changes: true,
    };
    let begin = resident_bytes().unwrap();
    let engine = open(kind, &options).unwrap();
    let mut most = 0;
    for version in 0..2_u8 {
        for first in (0..count).step_by(1000) {
            let keys: Vec<u64> = (first..(first + 1000).min(count)).collect();
            let rows = vec![f32::from(version); keys.len() * 128];
            if version == 0 { engine.append(&keys, &rows) } else { engine.put(&keys, &rows) }.unwrap();
            most = most.max(resident_bytes().unwrap());
        }
    }
    for first in (0..1000).rev() {
        let keys: Vec<u64> =
            (0..100).map(|number| number * 1000 % count + first).filter(|key| *key < count).collect();
        let mut found = vec![0.0; keys.len() * 128];
        engine.get(&keys, &mut found).unwrap();
        assert!(found.iter().all(|value| *value == 1.0));
        most = most.max(resident_bytes().unwrap());
    }
    let grown = most.saturating_sub(begin);
    assert!(grown < MEMORY + BESIDE, "{grown} bytes of {MEMORY}");
}
