//! Fork of a process with open stores, as data loaders do. In the child every call must fail at once and say
//! what to do, closing and dropping must change nothing, and a read-only open must work. A separate test
//! program, because it forks the process.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use common::*;
use rowmill_store::*;

const ROWS: u64 = 4_000;
/// A child that waits for a lock or a thread of its parent is killed after this many seconds, and the test
/// fails.
const CHILD_SECONDS: u32 = 60;

/// Fork, and run `work` in the child, which then exits normally.
fn in_child(work: impl FnOnce()) {
    // SAFETY: the child runs `work` in its only thread and never returns from here.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: lets the kernel kill a child that hangs.
        unsafe { libc::alarm(CHILD_SECONDS) };
        let failed = catch_unwind(AssertUnwindSafe(work)).is_err();
        // SAFETY: ends the child, with its destructors of thread-locals and its `atexit` handlers.
        unsafe { libc::exit(i32::from(failed)) }
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for the child created above and writes its status to the pointer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child ended with status {status:#x}"
    );
}

fn folder_options() -> StoreOptions {
    let feed =
        FeedOptions { bytes: 32 << 20, interval: std::time::Duration::from_millis(1), waiting: 4 << 20 };
    StoreOptions { feed: Some(feed), ..options(Some(192 << 10)) }
}

fn unbounded() -> TableSpec {
    TableSpec { staleness: StalenessBound::Infinite, ..spec(8, SGD) }
}

/// A store in a folder whose rows exceed memory, with a checkpoint and later changes.
fn open_folder(folder: &Path) -> (Arc<Store>, Table) {
    let store = Store::open(folder, folder_options()).unwrap();
    let table = store.table("t", &unbounded()).unwrap();
    let ids: Vec<u64> = (0..ROWS).collect();
    let weights: Vec<f32> = ids.iter().flat_map(|&id| [id as f32; 8]).collect();
    table.put(&ids, &weights, None).unwrap();
    store.checkpoint(&[]).unwrap();
    table.put(&[7], &[-7.0; 8], None).unwrap();
    (store, table)
}

fn assert_forked<T>(result: Result<T, StoreError>) {
    match result {
        Err(error @ StoreError::Forked { .. }) => {
            let message = error.to_string();
            assert!(message.contains("read-only"), "{message}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a forked child used the store of its parent"),
    }
}

#[test]
fn every_call_in_a_forked_child_fails_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let (store, table) = open_folder(folder.path());
    let ticket = Arc::new(store.ticket().unwrap());
    let bags =
        [IdBag { ids: &[1, 2], offsets: &[0, 2], weights: None, padding: None, pooling: Pooling::Sum }];
    let of_bags = table.clone();
    let bags = bags.map(|bag| (&of_bags, bag));
    let lookup = store.lookup(&bags, &mut [0.0_f32; 8], 8, Some(&ticket)).unwrap();
    let (queued, second) = (table.get_later(&[3], &ticket).unwrap(), table.get_later(&[4], &ticket).unwrap());
    let changes = store.changes(0).unwrap();
    in_child(|| {
        assert_forked(store.check_process());
        assert_forked(table.get(&[1], &mut [0.0; 8]));
        assert_forked(table.get_state(&[1], &mut []));
        assert_forked(table.contains(&[1]));
        assert_forked(table.get_or_init(&[1], &mut [0.0; 8], Some(&ticket)));
        assert_forked(table.get_later(&[1], &ticket));
        assert!(queued.is_ready());
        assert_forked(queued.wait());
        assert_forked(table.put(&[1], &[0.0; 8], None));
        assert_forked(table.rmw(&[1], &[0.0; 8], None, None));
        assert_forked(table.delete(&[1]));
        assert_forked(table.evict());
        assert_forked(table.scan(10, |_, _| true));
        assert_forked(table.lookahead(&[1], Destination::Cache));
        assert_forked(store.lookup(&bags, &mut [0.0_f32; 8], 8, Some(&ticket)));
        assert_forked(store.evaluate(&bags, &mut [0.0_f32; 8], 8, None));
        assert_forked(store.apply(&lookup, &[0.0; 8], 8, &[0.1], Some(&ticket)));
        assert_forked(store.row_gradients(&lookup, &[0.0; 8], 8));
        assert_forked(store.ticket());
        assert_forked(store.table("t", &unbounded()));
        assert_forked(store.open_table("t"));
        assert_forked(store.checkpoint(&[]));
        assert_forked(store.prepare(&[]));
        assert_forked(store.commit());
        assert_forked(store.attachment("a"));
        assert_forked(store.publish());
        assert_forked(store.pin_checkpoint());
        assert_forked(store.changes(0));
        assert_forked(changes.for_each(10, |_| true));
        store.close();
        drop((second, ticket, lookup, changes, table, store));
    });
}

#[test]
fn a_forked_child_opens_the_store_read_only() {
    let folder = tempfile::tempdir().unwrap();
    let (_store, _table) = open_folder(folder.path());
    in_child(|| {
        let options = StoreOptions { read_only: true, ..options(Some(192 << 10)) };
        let store = Store::open(folder.path(), options).unwrap();
        let table = store.open_table("t").unwrap();
        let mut row = [0.0; 8];
        table.get(&[7], &mut row).unwrap();
        assert_eq!(row, [7.0; 8]);
        // A child of the child fails, too.
        in_child(|| assert_forked(table.get(&[7], &mut [0.0; 8])));
        table.get(&[8], &mut row).unwrap();
        assert_eq!(row, [8.0; 8]);
        store.close();
    });
}

/// Threads of the parent wait at locks while it forks, and the threads of the child get their memory.
#[test]
fn threads_of_stores_of_a_forked_child_are_woken() {
    const STORES: usize = 8;
    let open = |_| {
        let store = Store::open_volume(Arc::new(MemoryVolume::new()), options(None)).unwrap();
        let table = store.table("t", &unbounded()).unwrap();
        table.put(&[1], &[1.0; 8], None).unwrap();
        (store, table)
    };
    let _waiting: Vec<_> = (0..STORES).map(open).collect();
    for _ in 0..10 {
        in_child(|| {
            let stores: Vec<_> = (0..STORES).map(open).collect();
            for (store, table) in &stores {
                let ticket = Arc::new(store.ticket().unwrap());
                assert_eq!(table.get_later(&[1], &ticket).unwrap().wait().unwrap(), [1.0; 8]);
                table.lookahead(&[1], Destination::Cache).unwrap();
            }
            for (store, _) in &stores {
                store.close();
            }
        });
    }
}

/// While forking, threads of the parent and of the store hold locks.
#[test]
fn a_forked_child_ends_during_any_call_of_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let (store, table) = open_folder(folder.path());
    let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (store, table, stop, calls) = (&store, &table, &stop, &calls);
            scope.spawn(move || {
                for step in (0_u64..).take_while(|_| !stop.load(Relaxed)) {
                    let ids: Vec<u64> = (0..64).map(|i| (step * 64 + i * 7 + thread) % ROWS).collect();
                    let ticket = Arc::new(store.ticket().unwrap());
                    let queued = table.get_later(&ids, &ticket).unwrap();
                    queued.wait().unwrap();
                    table.rmw(&ids, &vec![0.0; ids.len() * 8], None, Some(&ticket)).unwrap();
                    table.lookahead(&ids, Destination::Cache).unwrap();
                    if thread == 0 && step % 50 == 0 {
                        store.checkpoint(&[]).unwrap();
                    }
                    calls.fetch_add(1, Relaxed);
                }
            });
        }
        let mut seen = 0;
        for fork in 0..30 {
            while calls.load(Relaxed) < seen + 5 {
                std::thread::yield_now();
            }
            seen = calls.load(Relaxed);
            let ticket = Arc::new(store.ticket().unwrap());
            let queued = table.get_later(&[fork], &ticket).unwrap();
            let (store, table) = (Arc::clone(&store), table.clone());
            in_child(|| {
                assert_forked(table.get(&[1], &mut [0.0; 8]));
                store.close();
                drop((queued, ticket, table, store));
            });
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn dropping_the_last_reference_in_a_child_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut owned = Some(open_folder(folder.path()));
    in_child(|| drop(owned.take()));
    let (store, table) = owned.unwrap();
    table.put(&[9], &[-9.0; 8], None).unwrap();
    store.checkpoint(&[]).unwrap();
    drop((store, table));
    let store = Store::open(folder.path(), folder_options()).unwrap();
    let table = store.open_table("t").unwrap();
    let mut rows = [0.0; 24];
    table.get(&[7, 8, 9], &mut rows).unwrap();
    assert_eq!(rows.chunks(8).map(|row| row[0]).collect::<Vec<_>>(), [-7.0, 8.0, -9.0]);
    drop((store, table));
    let volume: Arc<dyn Volume> = Arc::new(DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap());
    let report = fsck(&volume, false).unwrap();
    assert!(report.is_clean(), "{report:?}");
}
