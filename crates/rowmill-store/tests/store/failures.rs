//! Failures below the store: one of its threads panics, a file cannot be read or written, or the store is
//! closed during a call.
//!
//! What could break: a call waits forever for a thread that has ended; a write is accepted and never saved;
//! an error does not name the file; a call writes to a folder that another process has opened meanwhile.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::hooked::{Call, Hooked};
use crate::common::*;
use rowmill_store::*;

/// Longer than any of these tests takes on a busy machine.
const DEADLINE: Duration = Duration::from_mins(2);
/// Many times the rows that fit into memory.
const ROWS: u64 = 20_000;

/// Run work that must end before the deadline.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    let thread = std::thread::spawn(move || done.send(work()));
    match result.recv_timeout(DEADLINE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("still waiting after {DEADLINE:?}"),
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it sends what it returns"))
        }
    }
}

/// A store in which device or file calls of kind `call` panic in threads whose name begins with `thread`,
/// once the switch is set.
fn panicking(call: Call, thread: &'static str, feed: bool) -> (Arc<Store>, Table, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&armed);
    let volume = Hooked::new(MemoryVolume::new(), move |called, name| {
        let here = std::thread::current().name().is_some_and(|name| name.starts_with(thread));
        assert!(!(called == call && here && seen.load(SeqCst)), "injected into {name}");
        Ok(())
    });
    let interval = Duration::from_millis(1);
    let feed = feed.then_some(FeedOptions { interval, ..FeedOptions::default() });
    let store = open(&volume, &StoreOptions { feed, ..options(Some(96 << 10)) });
    let table = store.table("t", &bound(2)).unwrap();
    put_all(&table, 1.0).unwrap();
    (store, table, armed)
}

fn put_all(table: &Table, value: f32) -> Result<(), StoreError> {
    for first in (0..ROWS).step_by(500) {
        let ids: Vec<u64> = (first..first + 500).collect();
        table.put(&ids, &vec![value; ids.len() * 4], None)?;
    }
    Ok(())
}

/// Write until a write is refused. Returns the error.
fn refusal(store: &Store, table: &Table) -> StoreError {
    let begun = Instant::now();
    while begun.elapsed() < DEADLINE {
        if let Err(error) = put_all(table, 2.0).and_then(|()| store.checkpoint(&[]).map(drop)) {
            return error;
        }
    }
    panic!("every write was accepted");
}

/// Check that every later write fails for the same reason, and that rows can still be read.
fn check_poisoned(store: &Store, table: &Table, first: &StoreError, thread: &str) {
    let expected = format!("{thread} panicked: injected into ");
    for error in [
        &table.put(&[1], &[0.0; 4], None).unwrap_err(),
        &table.rmw(&[1], &[0.0; 4], None, None).unwrap_err(),
        &store.checkpoint(&[]).map(drop).unwrap_err(),
        first,
    ] {
        assert!(matches!(error, StoreError::Poisoned { cause } if cause.starts_with(&expected)), "{error}");
    }
    table.get(&[1, 2, 3], &mut [0.0; 12]).unwrap();
    store.close();
}

#[test]
fn a_log_writer_that_panics_poisons_the_store() {
    in_time(|| {
        let (store, table, armed) = panicking(Call::DeviceWrite, "rowmill-log", false);
        armed.store(true, SeqCst);
        let error = refusal(&store, &table);
        armed.store(false, SeqCst);
        check_poisoned(&store, &table, &error, "the log writer thread of group 0");
    });
}

#[test]
fn a_compaction_that_panics_poisons_the_store() {
    in_time(|| {
        let (store, table, armed) = panicking(Call::DeviceRead, "rowmill-compaction", false);
        armed.store(true, SeqCst);
        let error = refusal(&store, &table);
        check_poisoned(&store, &table, &error, "the compaction thread");
    });
}

#[test]
fn a_feed_that_panics_poisons_the_store() {
    in_time(|| {
        let (store, table, armed) = panicking(Call::FileWrite, "rowmill-feed", true);
        armed.store(true, SeqCst);
        let error = refusal(&store, &table);
        check_poisoned(&store, &table, &error, "the feed thread");
    });
}

#[test]
fn a_lookahead_that_panics_poisons_the_store_and_leaves_nothing_pending() {
    in_time(|| {
        let (store, table, armed) = panicking(Call::DeviceRead, "rowmill-lookahead", false);
        armed.store(true, SeqCst);
        let ids: Vec<u64> = (0..ROWS).collect();
        let error = loop {
            match store.lookahead(&[(&table, &ids)], Destination::Cache) {
                Ok(_) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert_eq!(store.lookahead_pending(), 0);
        check_poisoned(&store, &table, &error, "a lookahead thread");
    });
}

#[test]
fn queued_gets_fail_after_the_queue_panicked() {
    in_time(|| {
        let (store, table, armed) = panicking(Call::DeviceRead, "rowmill-queue", false);
        armed.store(true, SeqCst);
        let ticket = Arc::new(store.ticket().unwrap());
        let ids: Vec<u64> = (0..ROWS).collect();
        let gets: Vec<QueuedGet> =
            ids.chunks(5000).map_while(|ids| table.get_later(ids, &ticket).ok()).collect();
        assert!(!gets.is_empty());
        let mut errors = gets.into_iter().map(|get| get.wait().unwrap_err());
        let first = errors.next().unwrap();
        for error in errors.chain([table.get_later(&[1], &ticket).map(drop).unwrap_err()]) {
            assert!(matches!(error, StoreError::Poisoned { .. }), "{error}");
        }
        check_poisoned(&store, &table, &first, "the queue thread");
    });
}

/// The kind of calls that fail, and the prefix of the file names.
type Failing = Arc<Mutex<Option<(Call, &'static str)>>>;

fn failing(folder: &Path) -> (Hooked, Failing) {
    let failing = Failing::default();
    let seen = Arc::clone(&failing);
    let directory = DirectoryVolume::open(folder, IoChoice::Auto).unwrap();
    let volume = Hooked::new(directory, move |call, name| match &*seen.lock().unwrap() {
        Some((failing, prefix)) if *failing == call && name.starts_with(prefix) => {
            Err(io::Error::other("injected"))
        }
        _ => Ok(()),
    });
    (volume, failing)
}

#[test]
fn errors_of_files_name_operation_and_path() {
    let attachment: &[(&str, &[u8])] = &[("model", b"dense weights")];
    let filled = || {
        let folder = tempfile::tempdir().unwrap();
        let (volume, failing) = failing(folder.path());
        let store = open(&volume, &options(Some(96 << 10)));
        let table = store.table("t", &bound(2)).unwrap();
        put_all(&table, 1.0).unwrap();
        (folder, volume, failing, store, table)
    };
    let check = |error: &StoreError, operation: &str, folder: &Path, name: &str| {
        let expected = format!("{operation} of {}", folder.join(name).display());
        let text = error.to_string();
        assert!(text.contains(&expected) && text.contains("injected"), "{expected:?} is not in {text:?}");
    };
    for name in ["index-1.delta", "attachment-1-model", "MANIFEST.new"] {
        let (folder, _, failing, store, _) = filled();
        *failing.lock().unwrap() = Some((Call::FileWrite, name));
        let error = store.checkpoint(attachment).unwrap_err();
        check(&error, "write", folder.path(), name);
        let later = store.checkpoint(&[]).unwrap_err();
        assert!(matches!(&later, StoreError::Poisoned { .. }), "{later}");
        check(&later, "write", folder.path(), name);
    }
    let (folder, volume, failing, store, table) = filled();
    store.checkpoint(attachment).unwrap();
    *failing.lock().unwrap() = Some((Call::DeviceRead, "group-0.log"));
    let ids: Vec<u64> = (0..ROWS).collect();
    let error = table.get(&ids, &mut vec![0.0; ids.len() * 4]).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, StoreError::Device(_)) && text.matches("group-0.log").count() == 1, "{text}");
    assert!(text.starts_with("read of ") && text.ends_with("failed: injected"), "{text}");
    *failing.lock().unwrap() = Some((Call::FileRead, "attachment-1-model"));
    check(&store.attachment("model").unwrap_err(), "read", folder.path(), "attachment-1-model");
    let pinned = store.pin_checkpoint().unwrap();
    let part = pinned.parts().into_iter().find(|part| part.file == "attachment-1-model").unwrap();
    let error = pinned.reader().unwrap().read(&part).unwrap_err();
    check(&error, "read", folder.path(), "attachment-1-model");
    drop(pinned);
    store.close();
    for name in ["MANIFEST", "index-1.delta"] {
        *failing.lock().unwrap() = Some((Call::FileRead, name));
        let error = Store::open_volume(Arc::new(volume.clone()), options(Some(96 << 10))).unwrap_err();
        check(&error, "read", folder.path(), name);
    }
}

#[test]
fn a_running_call_writes_nothing_after_the_store_is_closed() {
    in_time(|| {
        let (closed, late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (seen, counted) = (Arc::clone(&closed), Arc::clone(&late));
        let volume = Hooked::new(MemoryVolume::new(), move |call, _| {
            if matches!(call, Call::DeviceWrite | Call::FileWrite) && seen.load(SeqCst) {
                counted.fetch_add(1, SeqCst);
            }
            Ok(())
        });
        for _ in 0..10 {
            closed.store(false, SeqCst);
            let store = open(&volume, &options(Some(96 << 10)));
            let table = store.table("t", &bound(2)).unwrap();
            std::thread::scope(|scope| {
                let ids: Vec<u64> = (0..5 * ROWS).collect();
                let values = vec![1.0; ids.len() * 4];
                let put = scope.spawn(move || {
                    loop {
                        if let Err(error) = table.put(&ids, &values, None) {
                            return error;
                        }
                    }
                });
                while store.stats().evictions < 1000 {
                    std::thread::yield_now();
                }
                store.close();
                closed.store(true, SeqCst);
                let error = put.join().unwrap();
                assert!(matches!(error, StoreError::Closed), "{error}");
            });
        }
        assert_eq!(late.load(SeqCst), 0, "writes after the folder was released");
    });
}
