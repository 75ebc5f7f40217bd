//! A feed that cannot keep up with training.
//!
//! What could break: rows that left memory wait without limit for a publisher that does not run; a full disk
//! stops training or the feed forever, or lets a follower skip missing changes. The first is measured with
//! the store's metrics, the second is injected into the feed's files. Both must have the same outcome:
//! training keeps every row, the cause is reported once, and followers that start again at the next
//! checkpoint get every row.

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::follower::Follower;
use crate::common::*;
use rowmill_io::DeviceError;
use rowmill_store::*;
use rowmill_testkit::{Fault, FaultyVolume, When};

const DIM: usize = 30;
const WAITING: u64 = 1 << 20;

fn publishing() -> StoreOptions {
    let feed = Some(FeedOptions { bytes: 32 << 20, waiting: WAITING, ..FeedOptions::default() });
    StoreOptions {
        threads: 1,
        background: Background::Turns { incarnation: 1 },
        feed,
        ..options(Some(240 << 10))
    }
}

/// Write rows `ids`: far more than fit into memory.
fn put(table: &Table, ids: std::ops::Range<u64>, value: f32) {
    for first in ids.clone().step_by(200) {
        let ids: Vec<u64> = (first..ids.end.min(first + 200)).collect();
        table.put(&ids, &vec![value; ids.len() * DIM], None).unwrap();
    }
}

/// The rows that [`put`] wrote.
fn rows(ids: std::ops::Range<u64>, value: f32) -> HashMap<(String, u64), Vec<f32>> {
    ids.map(|id| (("t".to_owned(), id), vec![value; DIM])).collect()
}

#[test]
fn waiting_rows_are_limited_and_followers_restart_from_a_checkpoint() {
    let volume = MemoryVolume::new();
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let store = open(&volume, &publishing());
    let table = store.table("t", &spec(DIM as u32, SGD)).unwrap();
    let mut behind = FeedReader::at_checkpoint(&shared, 0).unwrap();
    put(&table, 0..4000, 1.0);
    let waiting = store.stats().feed_waiting_bytes;
    assert!((200_000..WAITING).contains(&waiting), "{waiting} bytes wait of 4000 rows");
    let mut early = Follower { position: behind.position(), ..Follower::default() };
    store.publish().unwrap();
    early.read_all(&mut behind);
    assert_eq!((early.rows, store.stats().feed_waiting_bytes), (rows(0..4000, 1.0), 0));

    // No round of publishing for a long time.
    let mut most = 0;
    for first in (0..40_000).step_by(1000) {
        put(&table, first..first + 1000, 2.0);
        most = most.max(store.stats().feed_waiting_bytes);
    }
    assert!((WAITING / 2..=WAITING).contains(&most), "{most} bytes waited");
    let error = store.publish().unwrap_err().to_string();
    assert!(error.contains("until the next checkpoint") && error.contains("1048576 bytes"), "{error}");
    assert!(error.contains("feed_waiting"), "{error}");
    let stats = store.stats();
    assert!(stats.feed_failure.contains("feed_waiting") && stats.feed_waiting_bytes == 0, "{stats:?}");
    put(&table, 0..10_000, 3.0);
    assert_eq!(store.stats().feed_waiting_bytes, 0, "nothing is collected without need");
    assert!(matches!(store.publish(), Err(StoreError::FeedFailed { .. })));

    store.checkpoint(&[]).unwrap();
    assert_eq!(store.stats().feed_failure, "");
    let told = behind.poll().unwrap_err();
    assert!(matches!(told, StoreError::FeedGap { .. }), "{told}");
    let (mut follower, mut reader) = Follower::of_checkpoint(&store, &shared);
    put(&table, 0..2000, 4.0);
    table.delete(&(2000..40_000).collect::<Vec<_>>()).unwrap();
    store.publish().unwrap();
    follower.read_all(&mut reader);
    assert_eq!(follower.rows, rows(0..2000, 4.0));
    assert_eq!(follower.deletes, 38_000);

    // Changes after the checkpoint are rolled back as usual.
    store.close();
    open(&volume, &StoreOptions { background: Background::Turns { incarnation: 2 }, ..publishing() });
    follower.read_all(&mut reader);
    assert_eq!((follower.rollbacks, follower.rows.len()), (1, 40_000));
}

#[test]
fn the_limit_on_waiting_rows_includes_deleted_ids() {
    let store = open(&MemoryVolume::new(), &publishing());
    let table = store.table("t", &spec(DIM as u32, SGD)).unwrap();
    for first in (0..70_000).step_by(5000) {
        put(&table, first..first + 5000, 1.0);
        store.publish().unwrap();
    }
    let delete = |ids: std::ops::Range<u64>| {
        assert_eq!(table.delete(&ids.clone().collect::<Vec<_>>()).unwrap() as u64, ids.end - ids.start);
        store.stats().feed_waiting_bytes
    };
    assert_eq!(delete(0..10_000), 160_000, "16 bytes for each");
    let waiting = delete(10_000..70_000);
    assert!(waiting <= WAITING, "{waiting} bytes wait");
    assert!(matches!(store.publish(), Err(StoreError::FeedFailed { .. })));
}

#[test]
fn a_full_disk_is_reported_once_and_the_feed_restarts_at_a_checkpoint() {
    let memory = MemoryVolume::new();
    let volume = FaultyVolume::new(Arc::new(memory.clone()), 1);
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let store = open(&volume, &publishing());
    let table = store.table("t", &spec(DIM as u32, SGD)).unwrap();
    put(&table, 0..2000, 1.0);
    store.checkpoint(&[]).unwrap();
    let (mut follower, mut reader) = Follower::of_checkpoint(&store, &shared);

    volume.inject_on("feed-", Fault::Full, When::Always);
    put(&table, 0..1000, 2.0);
    let error = store.publish().unwrap_err();
    assert!(matches!(error, StoreError::Device(DeviceError::Full { .. })), "{error:?}");
    let first = error.to_string();
    assert!(first.contains("/feed-0") && first.contains("free space"), "path and remedy: {first}");
    let again = store.publish().unwrap_err();
    assert!(matches!(&again, StoreError::FeedFailed { cause } if *cause == first), "{again}");
    assert_eq!(store.stats().feed_failure, first);
    follower.read_all(&mut reader);
    assert_eq!(follower.rows.len(), 2000);

    // Training and its checkpoints continue with all rows.
    put(&table, 1000..3000, 3.0);
    store.checkpoint(&[]).unwrap();
    assert!(volume.fired(Fault::Full) >= 2, "the checkpoint tried again");
    assert!(!store.stats().feed_failure.is_empty());
    volume.heal();
    put(&table, 3000..4000, 4.0);
    assert!(matches!(store.publish(), Err(StoreError::FeedFailed { .. })), "missing changes are not skipped");
    store.checkpoint(&[]).unwrap();
    assert_eq!(store.stats().feed_failure, "");
    assert!(matches!(reader.poll(), Err(StoreError::FeedGap { .. })));
    let (mut follower, mut reader) = Follower::of_checkpoint(&store, &shared);
    put(&table, 4000..5000, 5.0);
    store.publish().unwrap();
    follower.read_all(&mut reader);
    let parts = [(0..1000, 2.0), (1000..3000, 3.0), (3000..4000, 4.0), (4000..5000, 5.0)];
    let all: HashMap<_, _> = parts.into_iter().flat_map(|(ids, value)| rows(ids, value)).collect();
    assert_eq!(follower.rows, all);
    let mut found = vec![0.0; 5000 * DIM];
    table.get(&(0..5000).collect::<Vec<_>>(), &mut found).unwrap();
    for (id, found) in (0..).zip(found.chunks(DIM)) {
        assert_eq!(found, all[&("t".to_owned(), id)], "row {id}");
    }
}
