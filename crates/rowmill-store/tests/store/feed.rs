//! The live feed.
//!
//! What could break: a row that left memory, was deleted or created again between two rounds is published
//! late, with other bytes or not at all; a cut and its frame disagree; after the store goes back to its
//! checkpoint, followers keep rows that no longer exist; a follower reads bytes left by a crash as frames, or
//! skips a gap unnoticed. A follower's copy, a plain map, is compared with a plain model, bit for bit: after
//! every round, at the frame of every checkpoint, and after every restart.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::follower::Follower;
use crate::common::*;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const UNIVERSE: u64 = 2000;
const NAMES: [&str; 3] = ["a", "b", "c"];

fn specs() -> [TableSpec; 3] {
    let dense = TableSpec { ids: IdRange::Dense { rows: UNIVERSE }, ..spec(11, ADAGRAD) };
    [spec(11, ADAGRAD), bf16(dense), split_bf16(spec(30, SGD))]
}

fn publishing(incarnation: u64) -> StoreOptions {
    let feed =
        Some(FeedOptions { bytes: 32 << 20, interval: Duration::from_millis(20), ..FeedOptions::default() });
    StoreOptions {
        threads: 1,
        background: Background::Turns { incarnation },
        feed,
        ..options(Some(240 << 10))
    }
}

fn tables(store: &Arc<Store>) -> Vec<Table> {
    specs().iter().zip(NAMES).map(|(spec, name)| store.table(name, spec).unwrap()).collect()
}

fn compare(copy: &Follower, models: &[Model]) {
    let rows: usize = models.iter().map(|model| model.rows.len()).sum();
    assert_eq!(copy.rows.len(), rows, "rows of the copy and of the store");
    for (model, name) in models.iter().zip(NAMES) {
        for (id, row) in &model.rows {
            let found = &copy.rows[&(name.to_owned(), *id)];
            near(found, &row.weights, 0.0, || format!("row {id} of {name}"));
        }
    }
}

struct Trained {
    volume: MemoryVolume,
    store: Arc<Store>,
    models: Vec<Model>,
    saved: Vec<Model>,
    incarnation: u64,
}

impl Trained {
    fn new() -> Self {
        let volume = MemoryVolume::new();
        let store = open(&volume, &publishing(1));
        tables(&store);
        let models: Vec<_> =
            specs().iter().zip(0..).map(|(spec, category)| Model::new(*spec, category)).collect();
        Self { volume, store, saved: models.clone(), models, incarnation: 1 }
    }

    fn volume(&self) -> Arc<dyn Volume> {
        Arc::new(self.volume.clone())
    }

    fn change(&mut self, rng: &mut Rng64) {
        let which = rng.below(3) as usize;
        let (table, model) = (&tables(&self.store)[which], &mut self.models[which]);
        let ids: Vec<u64> = (0..=rng.below(300)).map(|_| rng.below(UNIVERSE)).collect();
        match rng.below(6) {
            0 => {
                table.delete(&ids).unwrap();
                for id in ids {
                    model.rows.remove(&id);
                }
            }
            1 => {
                // Rows created by a read.
                table.get_or_init(&ids, &mut vec![0.0; ids.len() * model.dim()], None).unwrap();
                for id in ids {
                    model.row(id);
                }
            }
            _ => {
                let gradients = gradients(rng, ids.len() * model.dim());
                table.rmw(&ids, &gradients, Some(0.25), None).unwrap();
                model.rmw(&ids, &gradients, 0.25);
            }
        }
    }

    fn checkpoint(&mut self) {
        self.store.checkpoint(&[]).unwrap();
        self.saved.clone_from(&self.models);
    }

    /// Restart as after kill -9: nothing is saved.
    fn restart(&mut self, options: &StoreOptions) {
        self.store.close();
        self.store = open(&self.volume, options);
        self.models.clone_from(&self.saved);
        tables(&self.store);
    }

    fn reopen(&mut self) {
        self.incarnation += 1;
        let options = publishing(self.incarnation);
        self.restart(&options);
    }

    /// Change rows, publish, and read everything.
    fn round(&mut self, rng: &mut Rng64, reader: &mut FeedReader, copy: &mut Follower) {
        self.change(rng);
        self.store.publish().unwrap();
        copy.read_all(reader);
        compare(copy, &self.models);
    }
}

#[test]
fn a_copy_equals_the_store_after_every_round_cut_and_restart() {
    let (mut rollbacks, mut evictions, mut deletes) = (0, 0, 0);
    for seed in 0..15 {
        println!("seed {seed}");
        let mut rng = Rng64::new(seed);
        let mut trained = Trained::new();
        let mut eager = Follower::default();
        let mut reader = FeedReader::at_checkpoint(&trained.volume(), 0).unwrap();
        // Reads only now and then, with a new reader each time.
        let mut lazy = Follower { position: reader.position(), ..Follower::default() };
        for _ in 0..80 {
            match rng.below(12) {
                0 => {
                    trained.checkpoint();
                    trained.change(&mut rng);
                    eager.read_all(&mut reader);
                    assert_eq!(eager.checkpoint, trained.store.checkpoint_epoch());
                    compare(&eager, &trained.saved);
                }
                1 => {
                    trained.reopen();
                    eager.read_all(&mut reader);
                    compare(&eager, &trained.models);
                }
                2 => {
                    trained.store.publish().unwrap();
                    lazy.read_all(&mut FeedReader::open(&trained.volume(), lazy.position).unwrap());
                    compare(&lazy, &trained.models);
                }
                3 => {
                    let work = [Work::Write, Work::Clean, Work::LookAhead][rng.below(3) as usize];
                    trained.store.turn(work).unwrap();
                }
                4..8 => {
                    trained.store.publish().unwrap();
                    eager.read_all(&mut reader);
                    compare(&eager, &trained.models);
                }
                _ => trained.change(&mut rng),
            }
            evictions += trained.store.stats().evictions;
        }
        rollbacks += eager.rollbacks;
        deletes += eager.deletes;
    }
    assert!(rollbacks > 20 && evictions > 0 && deletes > 0, "{rollbacks}, {evictions}, {deletes}");
}

#[test]
fn a_follower_with_a_copy_of_a_checkpoint_starts_there() {
    let mut rng = Rng64::new(1);
    let mut trained = Trained::new();
    for _ in 0..10 {
        trained.change(&mut rng);
    }
    trained.checkpoint();
    for _ in 0..3 {
        trained.change(&mut rng);
    }
    trained.store.publish().unwrap();
    let (mut copy, mut reader) = Follower::of_checkpoint(&trained.store, &trained.volume());
    copy.read_all(&mut reader);
    compare(&copy, &trained.models);
    let error = FeedReader::at_checkpoint(&trained.volume(), 99).unwrap_err();
    assert!(error.to_string().contains("checkpoint 99 is not in the feed"), "{error}");
}

#[test]
fn the_thread_publishes_without_a_call() {
    let volume = MemoryVolume::new();
    let store = open(&volume, &StoreOptions { background: Background::Threads, ..publishing(0) });
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let mut reader = FeedReader::at_checkpoint(&shared, 0).unwrap();
    let table = store.table("a", &spec(4, SGD)).unwrap();
    for round in 0..5_u64 {
        table.put(&[round], &[round as f32; 4], None).unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        let event = loop {
            assert!(Instant::now() < deadline, "nothing was published");
            match reader.poll().unwrap() {
                Some(event) => break event,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let FeedChange::Rows { table, ids, weights, dim, .. } = event.change else { panic!("{event:?}") };
        assert_eq!((table.as_str(), dim, ids, weights), ("a", 4, vec![round], vec![round as f32; 4]));
    }
    let stats = store.stats();
    assert_eq!((stats.feed_rows, stats.feed_sequence), (5, reader.position()));
}

#[test]
fn concurrent_updates_do_not_tear_published_rows() {
    const ROWS: u64 = 64;
    let volume = MemoryVolume::new();
    let feed = Some(FeedOptions { interval: Duration::from_millis(1), ..FeedOptions::default() });
    let store = open(&volume, &StoreOptions { threads: 2, feed, ..options(None) });
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let mut reader = FeedReader::at_checkpoint(&shared, 0).unwrap();
    let table = store.table("a", &spec(64, SGD)).unwrap();
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // The writer goes on until rows were published beside it: on a busy machine 3,000 rounds may
        // be over before the first publication.
        let writer = scope.spawn(|| {
            let ids: Vec<u64> = (0..ROWS).collect();
            let mut round = 0;
            while round < 3000 || seen.load(Ordering::Relaxed) <= ROWS {
                assert!(round < 1 << 20, "nothing was published while rows changed");
                table.put(&ids, &vec![round as f32; 64 * ROWS as usize], None).unwrap();
                round += 1;
            }
            (round - 1) as f32
        });
        let mut last = vec![-1.0; ROWS as usize];
        loop {
            let ended = writer.is_finished();
            store.publish().unwrap();
            while let Some(event) = reader.poll().unwrap() {
                let FeedChange::Rows { ids, weights, .. } = event.change else { continue };
                for (id, row) in ids.iter().zip(weights.chunks_exact(64)) {
                    assert!(row.iter().all(|&weight| weight == row[0]), "row {id} is torn");
                    assert!(row[0] >= last[*id as usize], "row {id} goes back");
                    last[*id as usize] = row[0];
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
            if ended {
                break;
            }
        }
        let newest = writer.join().unwrap();
        assert!(last.iter().all(|&weight| weight == newest));
    });
}

fn read(volume: &MemoryVolume, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    volume.open(name).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

fn write(volume: &MemoryVolume, name: &str, bytes: &[u8]) {
    volume.create(name).unwrap().write_all(bytes).unwrap();
}

fn segments(volume: &MemoryVolume) -> Vec<String> {
    volume.list().unwrap().into_iter().filter(|name| name.starts_with("feed-")).collect()
}

#[test]
fn a_torn_frame_is_waited_for_and_skipped_after_a_restart() {
    let mut rng = Rng64::new(2);
    let mut trained = Trained::new();
    let mut copy = Follower::default();
    let mut reader = FeedReader::at_checkpoint(&trained.volume(), 0).unwrap();
    trained.round(&mut rng, &mut reader, &mut copy);
    trained.checkpoint();
    trained.round(&mut rng, &mut reader, &mut copy);
    let name = segments(&trained.volume).pop().unwrap();
    let whole = read(&trained.volume, &name);
    trained.change(&mut rng);
    trained.store.publish().unwrap();
    let longer = read(&trained.volume, &name);
    let position = copy.position;
    for cut in [whole.len() + 1, whole.len() + 9, longer.len() - 1] {
        write(&trained.volume, &name, &longer[..cut]);
        let mut reader = FeedReader::open(&trained.volume(), position).unwrap();
        while let Some(event) = reader.poll().unwrap() {
            // Frames before the torn one, if the round had several.
            assert!(event.sequence < trained.store.stats().feed_sequence);
        }
        // Zeros where a write was lost.
        write(&trained.volume, &name, &[&longer[..whole.len()], &[0; 4096]].concat());
        assert_eq!(FeedReader::open(&trained.volume(), position).unwrap().poll().unwrap(), None);
    }
    // The rest of the frame arrives late and is then read.
    write(&trained.volume, &name, &longer[..whole.len() + 5]);
    let mut late = FeedReader::open(&trained.volume(), position).unwrap();
    assert_eq!(late.poll().unwrap(), None);
    write(&trained.volume, &name, &longer);
    assert!(late.poll().unwrap().is_some());

    write(&trained.volume, &name, &longer[..whole.len() + 5]);
    trained.reopen();
    copy.read_all(&mut reader);
    assert_eq!(copy.rollbacks, 1);
    compare(&copy, &trained.models);
    trained.round(&mut rng, &mut reader, &mut copy);
}

#[test]
fn a_damaged_frame_is_an_error_and_gives_no_row() {
    let mut rng = Rng64::new(3);
    let mut trained = Trained::new();
    trained.change(&mut rng);
    let begin = trained.store.stats().feed_sequence;
    trained.store.publish().unwrap();
    let name = segments(&trained.volume).pop().unwrap();
    let whole = read(&trained.volume, &name);
    let frames = 32 + 8 + 32; // header of the segment, and the frame of checkpoint 0
    let mut errors = 0;
    for bit in (frames * 8..whole.len() * 8).step_by(61) {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        write(&trained.volume, &name, &bytes);
        let mut reader = FeedReader::open(&trained.volume(), begin).unwrap();
        loop {
            match reader.poll() {
                Ok(Some(event)) => assert!(event.sequence > begin),
                // A damaged length beyond the end of the file looks like a frame that is still being written.
                Ok(None) => break,
                Err(StoreError::Corrupt { what }) => {
                    assert!(what.contains(&name), "{what}");
                    errors += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(reader.position() < trained.store.stats().feed_sequence, "bit {bit}: all was read");
    }
    assert!(errors > 100, "{errors}");
}

#[test]
fn a_follower_that_falls_behind_must_restart_and_the_feed_stays_small() {
    let mut rng = Rng64::new(4);
    let volume = MemoryVolume::new();
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let options = StoreOptions { row_memory: None, ..publishing(1) };
    let store = open(&volume, &options);
    let mut behind = FeedReader::at_checkpoint(&shared, 0).unwrap();
    let since = behind.position();
    let table = store.table("wide", &spec(16_000, SGD)).unwrap();
    for _ in 0..1000 {
        table.put(&[rng.below(8)], &vec![1.0; 16_000], None).unwrap();
        store.publish().unwrap();
    }
    let held: usize = segments(&volume).iter().map(|name| read(&volume, name).len()).sum();
    assert!((20 << 20..=32 << 20).contains(&held), "{held} bytes of 64 MB");
    let end = loop {
        match behind.poll() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a gap was not noticed"),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, StoreError::FeedGap { .. }), "{end}");
    assert!(end.to_string().contains("start again with a copy of the last checkpoint"), "{end}");
    assert!(matches!(FeedReader::open(&shared, since), Err(StoreError::FeedGap { .. })));
    // The rows for a rollback were removed from the feed, too.
    let mut reader = FeedReader::open(&shared, store.stats().feed_sequence).unwrap();
    store.close();
    drop(store);
    open(&volume, &StoreOptions { background: Background::Turns { incarnation: 2 }, ..options });
    assert!(matches!(reader.poll(), Err(StoreError::FeedGap { .. })));
    FeedReader::at_checkpoint(&shared, 0).unwrap();
}

#[test]
fn unpublished_changes_break_the_feed() {
    let mut rng = Rng64::new(5);
    let mut trained = Trained::new();
    trained.change(&mut rng);
    trained.checkpoint();
    let mut reader = FeedReader::at_checkpoint(&trained.volume(), 1).unwrap();
    trained.restart(&StoreOptions { feed: None, ..publishing(8) });
    assert!(matches!(trained.store.publish(), Err(StoreError::NoFeed { .. })));
    assert_eq!(reader.poll().unwrap(), None);
    trained.change(&mut rng);
    trained.checkpoint();
    assert_eq!(segments(&trained.volume), [""; 0]);
    assert!(matches!(FeedReader::at_checkpoint(&trained.volume(), 2), Err(StoreError::NoFeed { .. })));
    trained.reopen();
    assert!(matches!(reader.poll(), Err(StoreError::FeedGap { .. })));
    FeedReader::at_checkpoint(&trained.volume(), 2).unwrap();
}

#[test]
fn frames_that_only_a_follower_has_are_detected() {
    // Power fails: the end of the feed is lost, but a follower elsewhere has read it.
    let mut rng = Rng64::new(6);
    let mut trained = Trained::new();
    trained.checkpoint();
    let mut copy = Follower::default();
    let mut reader = FeedReader::at_checkpoint(&trained.volume(), 1).unwrap();
    let name = segments(&trained.volume).pop().unwrap();
    let kept = read(&trained.volume, &name);
    trained.round(&mut rng, &mut reader, &mut copy);
    write(&trained.volume, &name, &kept);
    assert!(matches!(FeedReader::open(&trained.volume(), copy.position), Err(StoreError::FeedGap { .. })));
    trained.reopen();
    for _ in 0..20 {
        trained.change(&mut rng);
        trained.store.publish().unwrap();
    }
    assert!(matches!(reader.poll(), Err(StoreError::FeedGap { .. })));
    assert!(matches!(FeedReader::open(&trained.volume(), copy.position), Err(StoreError::FeedGap { .. })));
}

#[test]
fn a_rollback_removes_tables_created_after_the_checkpoint() {
    let mut trained = Trained::new();
    trained.checkpoint();
    let mut copy = Follower { checkpoint: 1, ..Follower::default() };
    let mut reader = FeedReader::at_checkpoint(&trained.volume(), 1).unwrap();
    let late = trained.store.table("late", &split_bf16(spec(30, SGD))).unwrap();
    late.put(&[1, 2], &[1.0; 60], None).unwrap();
    trained.store.publish().unwrap();
    copy.read_all(&mut reader);
    assert_eq!(copy.rows.len(), 2);
    trained.reopen();
    copy.read_all(&mut reader);
    assert_eq!((copy.rows.len(), copy.rollbacks), (0, 1));
}

#[test]
fn options_and_stores_without_a_feed_are_refused_by_name() {
    let volume = MemoryVolume::new();
    for feed in [
        FeedOptions { bytes: 1 << 20, ..FeedOptions::default() },
        FeedOptions { interval: Duration::ZERO, ..FeedOptions::default() },
        FeedOptions { waiting: 1000, ..FeedOptions::default() },
    ] {
        let options = StoreOptions { feed: Some(feed), ..options(None) };
        let error = Store::open_volume(Arc::new(volume.clone()), options).unwrap_err();
        assert!(matches!(error, StoreError::Option { .. }) && error.to_string().contains("feed"), "{error}");
    }
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    assert!(matches!(FeedReader::open(&shared, 0), Err(StoreError::NoFeed { .. })));
    assert!(matches!(FeedReader::at_checkpoint(&shared, 0), Err(StoreError::NoFeed { .. })));
    let store = open(&volume, &options(None));
    store.table("a", &spec(4, SGD)).unwrap().put(&[1], &[1.0; 4], None).unwrap();
    store.checkpoint(&[]).unwrap();
    assert_eq!(segments(&volume), [""; 0], "without a feed nothing is written");
}
