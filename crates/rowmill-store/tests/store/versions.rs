//! Versions: checkpoints that are kept, compared with copies of a plain model.
//!
//! What could break: a version changes or loses rows while training goes on and cleaning moves its rows; a
//! crash leaves a checkpoint whose versions cannot be opened; space of a version that is gone stays taken; a
//! rollback brings back something else; a follower of the feed misses it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use proptest::prelude::*;
use rowmill_io::DeviceError;
use rowmill_store::*;
use rowmill_testkit::{FaultyVolume, Rng64};

use crate::common::*;

const IDS: u64 = 3000;
const KEEP: usize = 3;

fn turns(incarnation: u64) -> StoreOptions {
    StoreOptions { background: Background::Turns { incarnation }, threads: 1, ..options(Some(224 << 10)) }
}

fn names(store: &Store) -> Vec<String> {
    store.versions().unwrap().into_iter().map(|version| version.name).collect()
}

/// Models of a store's tables.
type Models = BTreeMap<String, Model>;

/// A store that works by turns, and what it should hold.
struct Kept<V: Volume + Clone + 'static> {
    volume: V,
    store: Option<Arc<Store>>,
    models: Models,
    /// The models of the last checkpoint.
    saved: Models,
    /// Number, name and models of every version, oldest first.
    versions: Vec<(u64, String, Models)>,
    epoch: u64,
    openings: u64,
}

impl<V: Volume + Clone + 'static> Kept<V> {
    fn new(volume: V) -> Self {
        let models = Models::new();
        let (saved, versions) = (models.clone(), Vec::new());
        let mut kept = Self { volume, store: None, models, saved, versions, epoch: 0, openings: 0 };
        kept.reopen();
        kept
    }

    fn volume(&self) -> Arc<dyn Volume> {
        Arc::new(self.volume.clone())
    }

    fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    fn close(&mut self) {
        if let Some(store) = self.store.take() {
            store.close();
        }
    }

    fn reopen(&mut self) {
        self.close();
        self.openings += 1;
        self.store = Some(open(&self.volume, &turns(self.openings * 1_000_003)));
        self.models.clone_from(&self.saved);
        assert_eq!(self.store().checkpoint_epoch(), self.epoch);
    }

    fn change(&mut self, name: &str, wanted: u32, rng: &mut Rng64) {
        let store = Arc::clone(self.store());
        // Initial values depend on the order in which tables are created.
        for (category, (name, dim)) in (0..).zip([("a", 8), ("b", 40)]) {
            let spec = TableSpec { staleness: StalenessBound::Infinite, ..spec(dim, SGD) };
            if name == "a" || self.models.contains_key(name) || dim == wanted {
                store.table(name, &spec).unwrap();
                self.models.entry(name.into()).or_insert_with(|| Model::new(spec, category));
            }
        }
        let (table, model) = (store.open_table(name).unwrap(), self.models.get_mut(name).unwrap());
        let dim = wanted;
        // Some changes rewrite many rows, some few hot ones.
        let (count, from) = if rng.one_in(3) { (400, IDS) } else { (60, IDS / 16) };
        let ids: Vec<u64> = (0..count).map(|_| rng.below(from)).collect();
        if rng.one_in(5) {
            for id in &ids[..20] {
                model.rows.remove(id);
            }
            table.delete(&ids[..20]).unwrap();
        } else {
            let values = gradients(rng, ids.len() * dim as usize);
            model.rmw(&ids, &values, 0.5);
            table.rmw(&ids, &values, None, None).unwrap();
        }
    }

    fn clean(&self) {
        while self.store().turn(Work::Write).unwrap() || self.store().turn(Work::Clean).unwrap() {}
    }

    fn checkpoint(&mut self, version: Option<&str>, two_phases: bool) {
        let new = version.map(|name| as_version(name, KEEP));
        let store = self.store();
        let made = if two_phases {
            store.prepare_as(&[("at", b"x")], new.as_ref()).unwrap();
            store.commit()
        } else {
            store.checkpoint_as(&[("at", b"x")], new.as_ref())
        };
        self.made(made.unwrap().epoch, version);
    }

    fn made(&mut self, epoch: u64, version: Option<&str>) {
        self.epoch = epoch;
        self.saved.clone_from(&self.models);
        if let Some(name) = version {
            self.versions.retain(|(_, other, _)| other != name);
            self.versions.push((epoch, name.into(), self.saved.clone()));
            let gone = self.versions.len().saturating_sub(KEEP);
            self.versions.drain(..gone);
        }
    }

    fn rollback(&mut self, which: usize) {
        let Some((_, name, models)) = self.versions.get(which % KEEP).cloned() else { return };
        self.close();
        self.epoch = rollback(&self.volume(), &name).unwrap();
        self.saved = models;
        self.reopen();
    }

    /// Compare the last checkpoint and all versions with the models, and check the files.
    fn check(&self) {
        let expected: Vec<&str> = self.versions.iter().map(|(_, name, _)| name.as_str()).collect();
        if let Some(store) = &self.store {
            assert_eq!(names(store), expected);
            check_tables(store, &self.models);
        }
        for (epoch, name, models) in &self.versions {
            let reading = StoreOptions { read_only: true, version: Some(name.clone()), ..options(None) };
            let store = open(&self.volume, &reading);
            assert_eq!(store.checkpoint_epoch(), *epoch);
            assert_eq!(store.attachment("at").unwrap().as_deref(), Some(b"x".as_slice()));
            check_tables(&store, models);
            store.close();
        }
        if self.epoch > 0 {
            let report = fsck(&self.volume(), false).unwrap();
            assert!(report.is_clean(), "{report:?}");
            assert_eq!(report.versions, expected.len() as u64);
            let rows: usize = self.saved.values().map(|model| model.rows.len()).sum();
            assert_eq!(report.rows, rows as u64);
            let all = Changes::open(&self.volume(), 0).unwrap();
            let copy = Store::open_volume(Arc::new(MemoryVolume::new()), options(None)).unwrap();
            all.replay(&copy).unwrap();
            check_tables(&copy, &self.saved);
        }
    }
}

fn check_tables(store: &Arc<Store>, models: &Models) {
    assert_eq!(store.table_names(), models.keys().cloned().collect::<Vec<_>>());
    for (name, model) in models {
        model.check(&store.open_table(name).unwrap());
    }
}

#[derive(Clone, Debug)]
enum Act {
    Change { wide: bool },
    Clean,
    Checkpoint { version: Option<u8>, two_phases: bool },
    Reopen,
    Rollback(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => any::<bool>().prop_map(|wide| Act::Change { wide }),
        3 => Just(Act::Clean),
        4 => (prop::option::weighted(0.7, 0u8..6), any::<bool>())
            .prop_map(|(version, two_phases)| Act::Checkpoint { version, two_phases }),
        1 => Just(Act::Reopen),
        1 => (0..KEEP).prop_map(Act::Rollback),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn versions_equal_a_model(acts in prop::collection::vec(act(), 1..60), seed: u64) {
        let mut rng = Rng64::new(seed);
        let mut kept = Kept::new(MemoryVolume::new());
        for act in acts {
            match act {
                Act::Change { wide: false } => kept.change("a", 8, &mut rng),
                Act::Change { wide: true } => kept.change("b", 40, &mut rng),
                Act::Clean => kept.clean(),
                Act::Checkpoint { version, two_phases } => {
                    let name = version.map(|number| format!("v{number}"));
                    kept.checkpoint(name.as_deref(), two_phases);
                    kept.check();
                }
                Act::Reopen => kept.reopen(),
                Act::Rollback(which) => {
                    kept.rollback(which);
                    kept.check();
                }
            }
        }
        kept.clean();
        kept.check();
    }
}

/// The work whose every change of the device loses power in one of the runs below.
fn work<V: Volume + Clone + 'static>(kept: &mut Kept<V>, round: u64) {
    let mut rng = Rng64::new(round);
    for _ in 0..3 {
        kept.change("a", 8, &mut rng);
    }
    kept.clean();
}

#[test]
fn power_may_fail_at_every_change_of_the_device() {
    let (mut crashes, mut after) = (0, 0);
    for round in 0.. {
        let mut kept = Kept::new(FaultyVolume::over_memory(MemoryVolume::crashable(), round));
        for number in 0..6 {
            work(&mut kept, number);
            kept.checkpoint(Some(&format!("v{number}")), number % 2 == 0);
        }
        let before = (kept.epoch, kept.saved.clone(), kept.versions.clone());
        work(&mut kept, 7);
        // The same checkpoint loses power one change later in every round.
        kept.volume.lose_power_in(1 + round);
        let two_phases = round % 2 == 1;
        let new = as_version("next", KEEP);
        let store = Arc::clone(kept.store());
        let made = if two_phases {
            store.prepare_as(&[("at", b"x")], Some(&new)).and_then(|_| store.commit())
        } else {
            store.checkpoint_as(&[("at", b"x")], Some(&new))
        };
        drop(store);
        if !kept.volume.has_crashed() {
            made.unwrap();
            assert!(crashes > 20, "only {crashes} changes");
            assert!(after > 0, "no checkpoint was durable before its call returned");
            return;
        }
        crashes += 1;
        kept.close();
        kept.volume = kept.volume.crash().volume;
        let options = turns(77 + round);
        let latest = match Store::open_volume(kept.volume(), options.clone()) {
            Ok(store) => store.checkpoint_epoch(),
            Err(StoreError::InDoubt { committed, prepared, .. }) => {
                let at = if round % 3 == 0 { committed } else { prepared };
                let options = StoreOptions { at: Some(at), ..options };
                Store::open_volume(kept.volume(), options).unwrap().checkpoint_epoch()
            }
            Err(error) => panic!("{error}"),
        };
        if latest > before.0 {
            after += 1;
            kept.made(latest, Some("next"));
        } else {
            (kept.epoch, kept.saved, kept.versions) = before;
        }
        kept.reopen();
        kept.check();
        // It goes on as if nothing had happened, and another crash is as harmless.
        work(&mut kept, 8);
        kept.checkpoint(Some("last"), false);
        kept.reopen();
        kept.check();
    }
}

#[test]
fn power_may_fail_in_a_rollback() {
    for round in 0.. {
        let mut kept = Kept::new(FaultyVolume::over_memory(MemoryVolume::crashable(), round));
        for number in 0..4 {
            work(&mut kept, number);
            kept.checkpoint(Some(&format!("v{number}")), false);
        }
        kept.close();
        kept.volume.lose_power_in(1 + round);
        let done = rollback(&kept.volume(), "v2");
        let crashed = kept.volume.has_crashed();
        kept.volume = kept.volume.crash().volume;
        let (_, _, models) = kept.versions[1].clone();
        let reading = StoreOptions { read_only: true, ..options(None) };
        let found = open(&kept.volume, &reading).checkpoint_epoch();
        if found > kept.epoch {
            (kept.epoch, kept.saved) = (found, models);
        }
        kept.reopen();
        kept.check();
        if !crashed {
            assert_eq!(done.unwrap(), kept.epoch);
            assert!(round > 3, "only {round} changes");
            return;
        }
    }
}

#[test]
fn a_full_disk_leaves_all_versions() {
    use rowmill_testkit::{Fault, When};
    for nth in 1..12 {
        let mut kept = Kept::new(FaultyVolume::over_memory(MemoryVolume::crashable(), nth));
        for number in 0..4 {
            work(&mut kept, number);
            kept.checkpoint(Some(&format!("v{number}")), false);
        }
        work(&mut kept, 5);
        kept.volume.inject_on("", Fault::Full, When::Nth(nth));
        let made = kept.store().checkpoint_as(&[("at", b"x")], Some(&as_version("v4", KEEP)));
        kept.volume.heal();
        match made {
            Ok(info) => kept.made(info.epoch, Some("v4")),
            Err(error) => {
                let full = matches!(error, StoreError::Full { .. } | StoreError::Poisoned { .. });
                assert!(full, "{error}");
                let again = kept.store().checkpoint(&[]).unwrap_err();
                assert!(matches!(again, StoreError::Poisoned { .. }), "{again}");
            }
        }
        kept.reopen();
        kept.check();
        work(&mut kept, 6);
        kept.checkpoint(Some("v5"), false);
        kept.check();
    }
}

#[test]
fn a_version_that_is_not_there_is_refused_by_name() {
    let mut kept = Kept::new(MemoryVolume::new());
    kept.change("a", 8, &mut Rng64::new(1));
    kept.checkpoint(Some("first"), false);
    let reading =
        |version: &str| StoreOptions { read_only: true, version: Some(version.into()), ..options(None) };
    let error = Store::open_volume(kept.volume(), reading("second")).unwrap_err();
    assert!(error.to_string().contains("\"first\"") && error.to_string().contains("\"second\""), "{error}");
    // A number works, too.
    assert_eq!(open(&kept.volume, &reading("1")).checkpoint_epoch(), 1);
    let error = rollback(&kept.volume(), "first").unwrap_err();
    assert!(matches!(error, StoreError::Device(DeviceError::Locked { .. })), "{error}");
    kept.close();
    let store = open(&kept.volume, &reading("first"));
    for error in [store.pin_checkpoint().err(), store.changes(0).err()] {
        assert!(error.unwrap().to_string().contains("roll back to the version first"));
    }
    store.close();
    let writing = StoreOptions { version: Some("first".into()), ..options(None) };
    let error = Store::open_volume(kept.volume(), writing).unwrap_err();
    assert!(error.to_string().contains("rollback"), "{error}");
    let error = rollback(&kept.volume(), "second").unwrap_err();
    assert!(matches!(error, StoreError::Option { option: "version", .. }), "{error}");
    assert!(matches!(versions(&(Arc::new(MemoryVolume::new()) as _)), Err(StoreError::Missing { .. })));
}

#[test]
fn a_refused_checkpoint_keeps_no_version_without_its_rows() {
    let mut kept = Kept::new(MemoryVolume::new());
    for number in 0..4 {
        work(&mut kept, number);
        kept.checkpoint(Some(&format!("v{number}")), false);
    }
    work(&mut kept, 5);
    let next = as_version("v4", KEEP);
    let error = kept.store().checkpoint_as(&[("no/name", b"")], Some(&next)).unwrap_err();
    assert!(matches!(error, StoreError::Option { option: "attachment name", .. }), "{error}");
    // The version that would have gone goes at the next checkpoint.
    kept.versions.remove(0);
    kept.checkpoint(None, false);
    work(&mut kept, 6);
    kept.checkpoint(None, false);
    kept.check();
    kept.reopen();
    kept.check();
}

#[test]
fn the_best_version_stays() {
    let mut kept = Kept::new(MemoryVolume::new());
    for (number, auc) in [0.5, 0.9, 0.7, 0.8, 0.6].into_iter().enumerate() {
        kept.change("a", 8, &mut Rng64::new(number as u64));
        let version = NewVersion {
            step: Some(number as u64 * 10),
            metric: Some(auc),
            best: Some(Best::Highest),
            ..as_version(&format!("step-{}", number * 10), 3)
        };
        kept.store().checkpoint_as(&[], Some(&version)).unwrap();
    }
    let versions = kept.store().versions().unwrap();
    let found: Vec<_> = versions.iter().map(|version| (version.step, version.metric)).collect();
    assert_eq!(found, [(Some(10), Some(0.9)), (Some(30), Some(0.8)), (Some(40), Some(0.6))]);
    // The last version is the last checkpoint, so nothing is kept by it alone but its own file.
    assert!(versions[0].bytes_alone > versions[2].bytes_alone && versions[2].bytes_alone < 4096);
}

#[test]
fn the_space_of_a_version_that_goes_is_used_again() {
    let mut kept = Kept::new(MemoryVolume::new());
    let (mut used, mut moves) = (Vec::new(), 0);
    for number in 0..60 {
        for round in 0..4 {
            kept.change("a", 8, &mut Rng64::new(number * 10 + round));
        }
        kept.checkpoint(Some(&format!("v{number}")), false);
        kept.clean();
        let files = kept.volume.list().unwrap();
        moves += usize::from(files.contains(&format!("index-{}.moves", kept.epoch)));
        if number % 12 == 0 {
            kept.check();
        }
        let stats = kept.store().stats();
        used.push(stats.device_used_bytes + stats.device_pinned_bytes);
    }
    let (early, late) = (used[20..30].iter().max().unwrap(), used[50..].iter().max().unwrap());
    assert!(*late < early + early / 4, "{used:?}");
    assert!(moves > 10, "cleaning moved rows of versions for {moves} checkpoints");
    // Files of versions that are gone are removed.
    let files = kept.volume.list().unwrap();
    assert!(files.iter().filter(|name| name.starts_with("version-")).count() == KEEP, "{files:?}");
    kept.check();
}

#[test]
fn a_rollback_is_a_checkpoint_of_its_own() {
    let mut kept = Kept::new(MemoryVolume::new());
    for number in 0..4 {
        kept.change("a", 8, &mut Rng64::new(number));
        kept.checkpoint(Some(&format!("v{number}")), false);
    }
    kept.change("b", 40, &mut Rng64::new(9));
    kept.checkpoint(None, false);
    kept.rollback(0);
    assert_eq!(kept.epoch, 6);
    kept.check();
    // Changes cannot be listed across it, but since it.
    let gone = kept.store().changes(5).unwrap_err();
    assert!(matches!(gone, StoreError::ChangesGone { since: 5, oldest: 6 }), "{gone}");
    kept.change("a", 8, &mut Rng64::new(11));
    kept.checkpoint(Some("v9"), false);
    let changes = kept.store().changes(6).unwrap();
    assert_eq!((changes.since(), changes.until()), (6, 7));
    drop(changes);
    // Later versions stayed, and can be rolled back to in turn.
    assert_eq!(names(kept.store()), ["v2", "v3", "v9"]);
    kept.rollback(1);
    kept.check();
}

#[test]
fn followers_see_one_rollback() {
    let volume = MemoryVolume::new();
    let feeding = StoreOptions { feed: Some(FeedOptions::default()), ..options(Some(96 << 10)) };
    let put = |table: &Table, value: f32| table.put(&[1, 2, 3], &[value; 24], None).unwrap();
    // The feed does not reach back to this version.
    let store = open(&volume, &options(Some(96 << 10)));
    put(&store.table("a", &spec(8, SGD)).unwrap(), 0.5);
    store.checkpoint_as(&[], Some(&as_version("zero", 9))).unwrap();
    store.close();
    let store = open(&volume, &feeding);
    let table = store.open_table("a").unwrap();
    put(&table, 1.0);
    store.checkpoint_as(&[], Some(&as_version("one", 9))).unwrap();
    put(&table, 2.0);
    table.put(&[9], &[2.0; 8], None).unwrap();
    store.checkpoint_as(&[], Some(&as_version("two", 9))).unwrap();
    store.publish().unwrap();
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let mut reader = FeedReader::at_checkpoint(&shared, 3).unwrap();
    store.close();
    assert_eq!(rollback(&shared, "one").unwrap(), 4);
    let store = open(&volume, &feeding);
    let (mut rollbacks, mut rows, mut deleted) = (0, Vec::new(), Vec::new());
    while let Some(event) = reader.poll().unwrap() {
        match event.change {
            FeedChange::Rollback { epoch, .. } => {
                assert_eq!(epoch, 4);
                rollbacks += 1;
            }
            FeedChange::Rows { ids, weights, .. } => {
                assert!(weights.iter().all(|&weight| weight == 1.0));
                rows.extend(ids);
            }
            FeedChange::Deleted { ids, .. } => deleted.extend(ids),
            FeedChange::Checkpoint { epoch } => assert_eq!(epoch, 4),
            _ => unreachable!("no other event"),
        }
    }
    rows.sort_unstable();
    assert_eq!((rollbacks, rows, deleted), (1, vec![1, 2, 3], vec![9]));
    store.close();
    assert_eq!(rollback(&shared, "zero").unwrap(), 5);
    let _store = open(&volume, &feeding);
    assert!(matches!(reader.poll(), Err(StoreError::FeedGap { .. })));
}

/// Flip a bit in the middle of a file.
fn damage(volume: &MemoryVolume, name: &str) {
    let mut bytes = Vec::new();
    volume.open(name).unwrap().read_to_end(&mut bytes).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    let mut file = volume.create(name).unwrap();
    file.write_all(&bytes).unwrap();
    file.sync().unwrap();
}

/// A store with three versions after enough work that cleaning has moved rows of versions.
fn cleaned() -> Kept<MemoryVolume> {
    let mut kept = Kept::new(MemoryVolume::new());
    for number in 0..16 {
        for round in 0..8 {
            kept.change("a", 8, &mut Rng64::new(100 * number + round));
            kept.clean();
        }
        kept.checkpoint(Some(&format!("v{number}")), false);
    }
    kept.close();
    kept
}

#[test]
fn a_repair_drops_damaged_versions_only() {
    for kind in ["version-", ".rows", ".moves"] {
        let mut kept = cleaned();
        let files = kept.volume.list().unwrap();
        let middle = kept.versions[1].0;
        let epoch = |name: &str| name.split(['-', '.']).nth(1).unwrap().parse::<u64>().unwrap();
        let is_it = |name: &&String| match kind {
            ".moves" => name.ends_with(kind),
            _ => name.contains(kind) && epoch(name) == middle,
        };
        let file = files.iter().rfind(is_it).unwrap_or_else(|| panic!("no {kind} in {files:?}"));
        let is_lost =
            |version: &u64| if kind == ".moves" { *version < epoch(file) } else { *version == middle };
        damage(&kept.volume, file);
        let report = fsck(&kept.volume(), false).unwrap();
        for (_, name, _) in kept.versions.iter().filter(|(epoch, ..)| is_lost(epoch)) {
            let named = |problem: &String| problem.contains(&format!("version {name:?}"));
            assert!(report.problems.iter().any(named), "{report:?}");
        }
        assert_eq!(report.rows, kept.saved["a"].rows.len() as u64);
        let error = Store::open_volume(kept.volume(), turns(99)).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }) && error.to_string().contains(file), "{error}");
        kept.epoch = fsck(&kept.volume(), true).unwrap().repaired.unwrap();
        kept.versions.retain(|(epoch, ..)| !is_lost(epoch));
        // A repair keeps attachments of the last checkpoint, and everything of the other versions.
        kept.reopen();
        kept.check();
    }
}

#[test]
fn a_dropped_version_frees_its_space() {
    let mut kept = Kept::new(MemoryVolume::new());
    for number in 0..4 {
        for round in 0..6 {
            kept.change("a", 8, &mut Rng64::new(10 * number + round));
        }
        kept.checkpoint(Some(&format!("v{number}")), false);
    }
    kept.close();
    drop_version(&kept.volume(), "v2").unwrap();
    kept.versions.retain(|(_, name, _)| name != "v2");
    kept.reopen();
    kept.check();
    kept.close();
    for name in ["v1", "v3"] {
        drop_version(&kept.volume(), name).unwrap();
    }
    kept.versions.clear();
    kept.reopen();
    kept.check();
    kept.checkpoint(None, false);
    kept.check();
    let files = kept.volume.list().unwrap();
    let strange =
        |name: &String| name.contains(".moves") || name.contains(".rows") || name.starts_with("version");
    assert!(!files.iter().any(strange), "{files:?}");
}

#[test]
fn a_pinned_checkpoint_has_no_versions() {
    let mut kept = Kept::new(MemoryVolume::new());
    for number in 0..4 {
        work(&mut kept, number);
        kept.checkpoint(Some(&format!("v{number}")), false);
    }
    // Whole segments then have rows of versions only.
    let ids: Vec<u64> = (0..IDS).collect();
    let values = vec![1.0; ids.len() * 8];
    kept.models.get_mut("a").unwrap().put(&ids, &values);
    kept.store().open_table("a").unwrap().put(&ids, &values, None).unwrap();
    kept.checkpoint(None, false);
    let pinned = kept.store().pin_checkpoint().unwrap();
    let copy = MemoryVolume::new();
    let mut reader = pinned.reader().unwrap();
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for part in pinned.parts() {
        let bytes = reader.read(&part).unwrap();
        let file = files.entry(part.file.clone()).or_default();
        let mut from = 0;
        for &(offset, len) in &part.spans {
            let end = (offset + len) as usize;
            file.resize(file.len().max(end), 0);
            file[offset as usize..end].copy_from_slice(&bytes[from..from + len as usize]);
            from += len as usize;
        }
    }
    for (name, bytes) in &files {
        if name.starts_with("group-") {
            copy.device(name, true).unwrap().write(0, bytes).unwrap();
        } else {
            let mut file = copy.create(name).unwrap();
            file.write_all(bytes).unwrap();
            file.sync().unwrap();
        }
    }
    let report = fsck(&(Arc::new(copy.clone()) as _), false).unwrap();
    assert!(report.is_clean() && report.versions == 0, "{report:?}");
    let restored = open(&copy, &turns(5));
    check_tables(&restored, &kept.saved);
    // Only the segments of the last checkpoint are copied.
    let all = fsck(&kept.volume(), false).unwrap();
    assert!(report.segments < all.segments, "{} of {}", report.segments, all.segments);
}
