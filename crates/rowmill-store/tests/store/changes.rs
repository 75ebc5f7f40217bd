//! Changes between two checkpoints.
//!
//! What could break: a row that left memory before the checkpoint, was saved after the cut or was moved by
//! cleaning is missing or has old bytes; a row that was deleted and created again stays deleted; a list of an
//! epoch before a restart, a snapshot or a crash is lost. To find these, copies at several older checkpoints
//! are brought up to the last one and compared with a plain model, bit for bit.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::sync::Arc;

use crate::common::*;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const UNIVERSE: u64 = 2500;
const BATCH: u64 = 300;

fn specs() -> [TableSpec; 3] {
    let dense = TableSpec { ids: IdRange::Dense { rows: UNIVERSE }, ..spec(11, ADAM) };
    [spec(11, ADAM), bf16(dense), split_bf16(spec(30, SGD))]
}

fn small(incarnation: u64) -> StoreOptions {
    StoreOptions { threads: 1, background: Background::Turns { incarnation }, ..options(Some(240 << 10)) }
}

fn empty() -> Arc<Store> {
    open(&MemoryVolume::new(), &StoreOptions { threads: 1, ..options(None) })
}

/// A store under random calls, and copies of it at older checkpoints.
struct Followed {
    volume: MemoryVolume,
    store: Arc<Store>,
    models: Vec<Model>,
    saved: Vec<Model>,
    copies: Vec<(u64, Arc<Store>)>,
    incarnation: u64,
}

fn tables(store: &Arc<Store>) -> Vec<Table> {
    specs().iter().zip(["a", "b", "c"]).map(|(spec, name)| store.table(name, spec).unwrap()).collect()
}

impl Followed {
    fn new() -> Self {
        let volume = MemoryVolume::new();
        let store = open(&volume, &small(0));
        let models: Vec<_> =
            specs().iter().zip(0..).map(|(spec, category)| Model::new(*spec, category)).collect();
        tables(&store);
        Self { volume, store, saved: models.clone(), models, copies: Vec::new(), incarnation: 0 }
    }

    fn change(&mut self, rng: &mut Rng64) {
        let which = rng.below(3) as usize;
        let (table, model) = (&tables(&self.store)[which], &mut self.models[which]);
        let mut ids: Vec<u64> = (0..=rng.below(BATCH)).map(|_| rng.below(UNIVERSE)).collect();
        match rng.below(8) {
            0 => {
                table.delete(&ids).unwrap();
                for id in ids {
                    model.rows.remove(&id);
                }
            }
            1 => {
                let values = gradients(rng, ids.len() * model.dim());
                table.put(&ids, &values, None).unwrap();
                model.put(&ids, &values);
            }
            2 if table.state_floats() > 0 => {
                ids.sort_unstable();
                ids.dedup();
                // Second moments are not negative.
                let values: Vec<f32> =
                    gradients(rng, ids.len() * table.state_floats()).into_iter().map(f32::abs).collect();
                table.put_state(&ids, &values).unwrap();
                model.put_state(&ids, &values);
            }
            _ => {
                let gradients = gradients(rng, ids.len() * model.dim());
                table.rmw(&ids, &gradients, Some(0.25), None).unwrap();
                model.rmw(&ids, &gradients, 0.25);
            }
        }
    }

    fn background(&self, rng: &mut Rng64) {
        let work = [Work::Write, Work::Clean, Work::LookAhead][rng.below(3) as usize];
        self.store.turn(work).unwrap();
    }

    fn checkpoint(&mut self, rng: &mut Rng64) {
        self.store.checkpoint(&[]).unwrap();
        self.saved.clone_from(&self.models);
        // Changes of the open store, which has changed since its checkpoint, or of its folder.
        if rng.one_in(2) {
            self.change(rng);
        }
        match rng.below(4) {
            0 => {
                let copy = empty();
                self.store.changes(0).unwrap().replay(&copy).unwrap();
                self.compare(&copy);
                self.copies.push((self.store.checkpoint_epoch(), copy));
            }
            1 if !self.copies.is_empty() => {
                let which = rng.below(self.copies.len() as u64) as usize;
                let (since, copy) = self.copies.swap_remove(which);
                let volume: Arc<dyn Volume> = Arc::new(self.volume.clone());
                let changes = Changes::open(&volume, since).unwrap();
                assert_eq!((changes.since(), changes.until()), (since, self.store.checkpoint_epoch()));
                changes.replay(&copy).unwrap();
                self.compare(&copy);
                self.copies.push((self.store.checkpoint_epoch(), copy));
            }
            _ => {}
        }
    }

    fn restart(&mut self) {
        self.store.close();
        self.incarnation += 1;
        self.store = open(&self.volume, &small(self.incarnation));
        self.models.clone_from(&self.saved);
    }

    fn compare(&self, copy: &Arc<Store>) {
        for (table, model) in tables(copy).iter().zip(&self.saved) {
            model.check(table);
        }
    }
}

#[test]
fn copies_at_any_older_checkpoint_catch_up_bit_for_bit() {
    let (mut moved, mut evicted, mut snapshots) = (0, 0, 0);
    for seed in 0..20 {
        println!("seed {seed}");
        let mut rng = Rng64::new(seed);
        let mut followed = Followed::new();
        for _ in 0..120 {
            match rng.below(10) {
                0 => followed.checkpoint(&mut rng),
                1 => followed.restart(),
                2..4 => followed.background(&mut rng),
                _ => followed.change(&mut rng),
            }
            let stats = followed.store.stats();
            moved = moved.max(stats.rows_compacted);
            evicted = evicted.max(stats.evictions);
        }
        followed.checkpoint(&mut rng);
        for (since, copy) in &followed.copies {
            followed.store.changes(*since).unwrap().replay(copy).unwrap();
            followed.compare(copy);
        }
        let names = followed.volume.list().unwrap();
        snapshots += names.iter().filter(|name| name.contains(".snapshot")).count();
    }
    assert!(moved > 0 && evicted > 0 && snapshots > 0, "{moved} moved, {evicted} evicted, {snapshots}");
}

/// The ids written and the ids deleted, by table.
fn told(changes: &Changes, batch: usize) -> BTreeMap<String, (BTreeSet<u64>, BTreeSet<u64>)> {
    let mut told: BTreeMap<String, (BTreeSet<u64>, BTreeSet<u64>)> = BTreeMap::new();
    changes
        .for_each(batch, |changed| {
            assert!(changed.ids.len() <= batch && changed.deleted.len() <= batch);
            assert_eq!(changed.rows.len(), changed.ids.len() * changed.row_floats);
            let (written, deleted) = told.entry(changed.table.to_owned()).or_default();
            assert!(changed.ids.iter().all(|&id| written.insert(id)), "an id occurs twice");
            assert!(changed.deleted.iter().all(|&id| deleted.insert(id)), "an id occurs twice");
            true
        })
        .unwrap();
    told
}

#[test]
fn changes_list_only_written_and_deleted_rows() {
    let store = open(&MemoryVolume::new(), &small(0));
    let table = store.table("a", &spec(30, SGD)).unwrap();
    let ids: Vec<u64> = (0..4000).collect();
    for ids in ids.chunks(200) {
        table.put(ids, &vec![1.0; ids.len() * 30], None).unwrap();
    }
    store.checkpoint(&[]).unwrap();
    // Rewrite half of the rows three times. Cleaning then moves the other half, which must not count as changed.
    for _ in 0..3 {
        for ids in ids.chunks(200).step_by(2) {
            table.put(ids, &vec![2.0; ids.len() * 30], None).unwrap();
        }
        store.checkpoint(&[]).unwrap();
        while store.turn(Work::Clean).unwrap() {}
    }
    let since = store.checkpoint_epoch();
    assert!(store.stats().rows_compacted > 0, "no row moved");
    table.put(&[1, 2], &[3.0; 60], None).unwrap();
    table.put(&[9_000], &[3.0; 30], None).unwrap();
    table.delete(&[3, 4, 9_000]).unwrap();
    table.put(&[4], &[4.0; 30], None).unwrap();
    store.checkpoint(&[]).unwrap();

    let told_of = told(&store.changes(since).unwrap(), 2);
    assert_eq!(
        told_of,
        BTreeMap::from([("a".to_owned(), (BTreeSet::from([1, 2, 4]), BTreeSet::from([3, 9_000])))])
    );
    let all: BTreeSet<u64> = ids.into_iter().filter(|id| *id != 3).collect();
    let whole = BTreeMap::from([("a".to_owned(), (all, BTreeSet::new()))]);
    assert_eq!(told(&store.changes(0).unwrap(), 1000), whole);
    assert_eq!(told(&store.changes(store.checkpoint_epoch()).unwrap(), 1000), BTreeMap::new());
}

#[test]
fn changes_from_unknown_checkpoints_are_refused_with_numbers() {
    let volume = MemoryVolume::new();
    let store = open(&volume, &StoreOptions { history: 0, ..small(0) });
    assert!(matches!(store.changes(0).unwrap_err(), StoreError::NoCheckpoint { .. }));
    let table = store.table("a", &spec(30, SGD)).unwrap();
    for round in 0..20_u64 {
        let ids: Vec<u64> = (0..500).map(|id| id + round * 10).collect();
        table.put(&ids, &vec![round as f32; ids.len() * 30], None).unwrap();
        store.checkpoint(&[]).unwrap();
    }
    let error = store.changes(1).unwrap_err();
    let StoreError::ChangesGone { since: 1, oldest } = error else { panic!("{error}") };
    assert!(oldest > 1 && oldest < 20, "without history the lists since the snapshot are there: {oldest}");
    assert!(matches!(store.changes(oldest - 1).unwrap_err(), StoreError::ChangesGone { .. }));
    told(&store.changes(oldest).unwrap(), 100);
    let error = store.changes(21).unwrap_err();
    assert!(matches!(error, StoreError::Option { option: "since", .. }), "{error}");
    assert!(error.to_string().contains("at most 20"), "{error}");
}

#[test]
fn history_is_limited_by_bytes_and_number_of_lists() {
    let volume = MemoryVolume::new();
    let store = open(&volume, &StoreOptions { history: 40 << 10, ..small(0) });
    let table = store.table("a", &spec(4, SGD)).unwrap();
    for round in 0..60_u64 {
        let ids: Vec<u64> = (0..600).map(|id| id + round).collect();
        table.put(&ids, &vec![round as f32; ids.len() * 4], None).unwrap();
        store.checkpoint(&[]).unwrap();
        let bytes: usize = lists(&volume).iter().map(|name| read(&volume, name).len()).sum();
        // Besides history: the lists that the last checkpoint needs, and the list being written.
        assert!(bytes < (40 << 10) + (16 << 10) + (10 << 10) * 2, "{bytes} bytes of lists");
    }
    let oldest = match store.changes(1).unwrap_err() {
        StoreError::ChangesGone { oldest, .. } => oldest,
        error => panic!("{error}"),
    };
    assert!(oldest < 58, "some history was kept");
}

#[test]
fn the_number_of_empty_lists_is_limited_too() {
    let volume = MemoryVolume::new();
    let store = open(&volume, &small(0));
    let table = store.table("a", &spec(4, SGD)).unwrap();
    for round in 0..1500_u64 {
        table.put(&[round % 3], &[0.5; 4], None).unwrap();
        store.checkpoint(&[]).unwrap();
    }
    let lists = lists(&volume).len();
    // 256 lists of history, and the lists that fit into the 16 KiB before a snapshot replaces them.
    assert!((256..1000).contains(&lists), "{lists} lists");
}

#[test]
fn the_error_for_missing_history_says_so() {
    let volume = MemoryVolume::new();
    let store = open(&volume, &small(0));
    let table = store.table("a", &spec(30, SGD)).unwrap();
    for round in 0..20_u64 {
        table.put(&(0..500).collect::<Vec<_>>(), &vec![round as f32; 500 * 30], None).unwrap();
        store.checkpoint(&[]).unwrap();
    }
    told(&store.changes(1).unwrap(), 100);
    let first = volume.list().unwrap().into_iter().find(|name| name == "index-5.delta").unwrap();
    volume.remove(&first).unwrap();
    let error = store.changes(1).unwrap_err();
    assert!(matches!(error, StoreError::ChangesGone { since: 1, oldest: 5 }), "{error}");
    told(&store.changes(5).unwrap(), 100);
    store.close();
    open(&volume, &small(1));
}

#[test]
fn a_damaged_list_is_an_error_before_any_change_is_returned() {
    let volume = MemoryVolume::new();
    let store = open(&volume, &small(0));
    let table = store.table("a", &spec(30, SGD)).unwrap();
    for round in 0..3_u64 {
        table.put(&(0..500).collect::<Vec<_>>(), &vec![round as f32; 500 * 30], None).unwrap();
        store.checkpoint(&[]).unwrap();
    }
    let mut bytes = read(&volume, "index-2.delta");
    bytes[40] ^= 1;
    let mut file = volume.create("index-2.delta").unwrap();
    file.write_all(&bytes).unwrap();
    let end = store.changes(1).unwrap().for_each(100, |_| panic!("damaged changes were returned"));
    assert!(matches!(end.unwrap_err(), StoreError::Corrupt { .. }));
}

#[test]
fn a_writer_that_makes_checkpoints_meanwhile_is_detected() {
    let volume = MemoryVolume::new();
    let store = open(&volume, &small(0));
    let table = store.table("a", &spec(30, SGD)).unwrap();
    let rewrite = |round: u64| {
        for ids in (0..4000).collect::<Vec<_>>().chunks(200) {
            table.put(ids, &vec![round as f32; ids.len() * 30], None).unwrap();
        }
        store.checkpoint(&[]).unwrap();
    };
    rewrite(0);
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let (elsewhere, pinned) = (Changes::open(&shared, 0).unwrap(), store.changes(0).unwrap());
    let visit = |changes: &Changes| {
        changes.for_each(100, |changed| {
            assert!(changed.rows.iter().all(|&weight| weight == 0.0), "rows of another checkpoint");
            true
        })
    };
    (1..6).for_each(rewrite);
    visit(&pinned).unwrap();
    drop(pinned);
    (6..12).for_each(rewrite);
    assert!(matches!(visit(&elsewhere).unwrap_err(), StoreError::Superseded));
}

fn lists(volume: &MemoryVolume) -> Vec<String> {
    volume.list().unwrap().into_iter().filter(|name| name.contains(".delta")).collect()
}

fn read(volume: &MemoryVolume, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    volume.open(name).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}
