//! Tests of failures: a restored checkpoint that differs, a checkpoint that becomes visible too early, a
//! missing or superfluous object, and two writers at one URL.
//!
//! The object store is in memory or a folder. A test can fail any request, or run code before it. The Python
//! tests cover an S3 server, processes and signals.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::thread;

use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rowmill_store::{
    Dtype, FILES_ATTACHMENT, IdRange, Initializer, OptimizerSpec, StalenessBound, Store, StoreError,
    StoreOptions, Table, TableSpec,
};
use rowmill_testkit::Rng64;
use tempfile::TempDir;

use super::*;
use crate::history::{Pushes, contents_of};
use crate::layout::{OBJECTS, contents_key};
use crate::remote::Hook;
use crate::runtime::block_on;

const ROWS: u64 = 3000;
const DIM: usize = 8;
const NEVER: &dyn Fn() -> bool = &|| false;

/// A store in a folder, and the random numbers it is trained with.
struct Trained {
    store: Arc<Store>,
    table: Table,
    rng: Rng64,
    /// The folder, if the store owns it; removed with the store.
    own_folder: Option<TempDir>,
}

impl Trained {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut trained = Self::open(folder.path());
        trained.own_folder = Some(folder);
        trained.train(ROWS);
        trained
    }

    fn open(folder: &FilePath) -> Self {
        let options =
            StoreOptions { memory: 32 << 20, row_memory: Some(256 << 10), ..StoreOptions::default() };
        let spec = TableSpec {
            dim: DIM as u32,
            dtype: Dtype::F32,
            optimizer: OptimizerSpec::Adagrad { lr: 0.5, eps: 1e-10, initial_accumulator: 0.25 },
            initializer: Initializer::Uniform { low: -0.5, high: 0.5 },
            staleness: StalenessBound::Steps(0),
            ids: IdRange::Sparse,
            eviction: None,
            admission: None,
        };
        let store = Store::open(folder, options).unwrap();
        let table = store.table("t", &spec).unwrap();
        Self { store, table, rng: Rng64::new(5), own_folder: None }
    }

    /// One training step over the first `rows` rows.
    fn train(&mut self, rows: u64) {
        let ids: Vec<u64> = (0..rows).collect();
        let gradients: Vec<f32> =
            (0..ids.len() * DIM).map(|_| self.rng.below(32) as f32 / 8.0 - 2.0).collect();
        self.table.rmw(&ids, &gradients, None, None).unwrap();
    }

    /// The bits of weights and state of every row.
    fn content(&self) -> Vec<u32> {
        let ids: Vec<u64> = (0..ROWS).collect();
        let (mut weights, mut state) = (vec![0.0; ids.len() * DIM], vec![0.0; ids.len() * DIM]);
        self.table.get(&ids, &mut weights).unwrap();
        self.table.get_state(&ids, &mut state).unwrap();
        weights.iter().chain(&state).map(|value| value.to_bits()).collect()
    }

    fn push(&self, remote: &Remote, keep: usize) -> Result<PushInfo, RemoteError> {
        push(&self.store.pin_checkpoint().unwrap(), remote, keep, NEVER)
    }

    /// Train, make a checkpoint, and return the content.
    fn advance(&mut self, rows: u64) -> Vec<u32> {
        self.train(rows);
        self.store.checkpoint(&[("model", &self.rng.below(1 << 60).to_le_bytes())]).unwrap();
        self.content()
    }
}

fn place(memory: &Arc<InMemory>) -> Remote {
    Remote::new(Arc::clone(memory) as _, Path::from("runs/a"), "memory:///runs/a".to_owned())
}

fn hooked(memory: &Arc<InMemory>, hook: Hook) -> Remote {
    let mut remote = place(memory);
    remote.hook = Some(hook);
    remote
}

/// Let `requests` requests pass, and fail all later ones.
fn fail_after(requests: u64) -> Hook {
    let left = Cell::new(requests);
    Box::new(move |_, _| {
        let before = left.get();
        left.set(before.saturating_sub(1));
        if before == 0 { Err("cut".to_owned()) } else { Ok(()) }
    })
}

/// Run `work` once, before the first `operation` on a key that contains `name`.
fn before_request(
    operation: &'static str,
    name: &'static str,
    memory: &Arc<InMemory>,
    work: impl FnOnce(&Arc<InMemory>) + Send + 'static,
) -> Remote {
    let once = Cell::new(Some((work, Arc::clone(memory))));
    let hook = move |asked: &str, key: &str| {
        if asked == operation
            && key.contains(name)
            && let Some((work, memory)) = once.take()
        {
            // On a thread of its own, because it runs requests too.
            thread::spawn(move || work(&memory)).join().unwrap();
        }
        Ok(())
    };
    hooked(memory, Box::new(hook))
}

fn epochs(remote: &Remote) -> Vec<u64> {
    checkpoints(remote, NEVER).unwrap().iter().map(|checkpoint| checkpoint.epoch).collect()
}

/// Restore a checkpoint into a new folder and compare its content.
fn assert_restores(remote: &Remote, epoch: Option<u64>, expected: &[u32]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let info = restore(remote, &path, epoch, NEVER).unwrap();
    let restored = Trained::open(&path);
    assert_eq!(restored.store.checkpoint_epoch(), info.epoch);
    assert!(epoch.is_none_or(|epoch| epoch == info.epoch));
    assert!(restored.content() == expected, "checkpoint {} was restored with changes", info.epoch);
    assert!(restored.store.attachment("model").unwrap().is_some());
}

fn keys(memory: &Arc<InMemory>) -> BTreeSet<String> {
    let list = async { Ok(memory.list(None).try_collect::<Vec<_>>().await.unwrap()) };
    block_on(NEVER, list).unwrap().into_iter().map(|object| object.location.to_string()).collect()
}

/// Every visible checkpoint has its objects, and there are no other objects.
fn assert_nothing_is_left_over(memory: &Arc<InMemory>) {
    let remote = place(memory);
    let named: BTreeSet<String> = block_on(NEVER, async {
        let pushes = Pushes::load(&remote).await?;
        let contents = contents_of(&remote, &pushes.visible).await?;
        let parts = contents
            .iter()
            .flat_map(|contents| contents.parts.iter().map(|part| contents.key(part).unwrap()));
        let entries = pushes.visible.iter().map(|push| contents_key(&push.entry.push));
        Ok(parts.chain(entries).collect())
    })
    .unwrap();
    let prefix = "runs/a/";
    let there: BTreeSet<String> =
        keys(memory).iter().filter_map(|key| key.strip_prefix(prefix)).map(str::to_owned).collect();
    let objects: BTreeSet<String> = there.into_iter().filter(|key| key.starts_with(OBJECTS)).collect();
    assert_eq!(objects, named);
}

#[test]
fn restored_checkpoints_are_bit_identical_and_share_equal_parts() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = Remote::open(&format!("file://{}/deep/place", folder.path().display())).unwrap();
    let memory: Arc<InMemory> = Arc::default();
    for remote in [in_folder, place(&memory)] {
        let mut trained = Trained::new();
        let mut contents = Vec::new();
        for round in 0..4 {
            contents.push(trained.advance(if round == 0 { ROWS } else { 100 }));
            let info = trained.push(&remote, 10).unwrap();
            assert_eq!(info.epoch, round + 1);
            if round == 0 {
                assert_eq!(info.bytes_uploaded, info.bytes);
            } else {
                assert!(info.bytes_uploaded < info.bytes / 2, "{info:?}");
            }
            let again = trained.push(&remote, 10).unwrap();
            assert_eq!((again.parts_uploaded, again.bytes, again.objects_removed), (0, info.bytes, 0));
        }
        assert_eq!(epochs(&remote), [1, 2, 3, 4]);
        assert!(checkpoints(&remote, NEVER).unwrap().iter().all(|checkpoint| checkpoint.rows == ROWS));
        for (epoch, expected) in (1..).zip(&contents) {
            assert_restores(&remote, Some(epoch), expected);
        }
        assert_restores(&remote, None, contents.last().unwrap());
    }
}

#[test]
fn files_that_a_checkpoint_names_are_pushed_and_restored() {
    let memory: Arc<InMemory> = Arc::default();
    let trained = Trained::new();
    let folder = trained.own_folder.as_ref().unwrap().path();
    let content = vec![7_u8; (5 << 20) + 3];
    std::fs::write(folder.join("run-a.json"), &content).unwrap();
    std::fs::write(folder.join("run-b.json"), b"{}").unwrap();
    let named = |names: &[u8]| trained.store.checkpoint(&[(FILES_ATTACHMENT, names)]).unwrap();
    named(b"run-a.json\nrun-b.json");
    let first = trained.push(&place(&memory), 2).unwrap();
    let target = tempfile::tempdir().unwrap();
    restore(&place(&memory), target.path(), None, NEVER).unwrap();
    assert!(std::fs::read(target.path().join("run-a.json")).unwrap() == content);
    assert_eq!(std::fs::read(target.path().join("run-b.json")).unwrap(), b"{}");
    // The next checkpoint names the same files: they are not uploaded again.
    named(b"run-a.json\nrun-b.json");
    let second = trained.push(&place(&memory), 2).unwrap();
    assert!(second.bytes_uploaded < first.bytes_uploaded - content.len() as u64, "{first:?} {second:?}");
    for names in ["run-a.json\nrun-c.json", "../run-a.json"] {
        named(names.as_bytes());
        let error = trained.store.pin_checkpoint().unwrap_err();
        assert!(error.to_string().contains(&names[names.len() - 10..]), "{error}");
    }
}

#[test]
fn a_push_continues_during_training_and_later_checkpoints() {
    let memory: Arc<InMemory> = Arc::default();
    let mut trained = Trained::new();
    let expected = trained.advance(ROWS);
    let pinned = trained.store.pin_checkpoint().unwrap();
    for _ in 0..5 {
        trained.advance(ROWS);
    }
    push(&pinned, &place(&memory), 1, NEVER).unwrap();
    assert_restores(&place(&memory), Some(1), &expected);
}

#[test]
fn only_the_last_checkpoints_are_kept_and_others_are_removed_completely() {
    let memory: Arc<InMemory> = Arc::default();
    let remote = place(&memory);
    let mut trained = Trained::new();
    let mut contents = Vec::new();
    for round in 1..=6 {
        contents.push(trained.advance(300 * round));
        trained.push(&remote, 2).unwrap();
        assert_nothing_is_left_over(&memory);
    }
    assert_eq!(epochs(&remote), [5, 6]);
    assert_restores(&remote, Some(5), &contents[4]);
    assert_restores(&remote, Some(6), &contents[5]);
    let error = restore(&remote, FilePath::new("never-made"), Some(4), NEVER).unwrap_err();
    assert_eq!(error.to_string(), "no checkpoint 4 at memory:///runs/a; it has 5, 6");
    trained.push(&remote, 1).unwrap();
    assert_eq!(epochs(&remote), [6]);
    assert!(matches!(trained.push(&remote, 0), Err(RemoteError::Option { option: "keep", .. })));
}

#[test]
fn an_interrupted_push_is_complete_or_invisible_and_cleaned_up() {
    let memory: Arc<InMemory> = Arc::default();
    let mut trained = Trained::new();
    let mut contents = vec![trained.advance(ROWS), trained.advance(500)];
    let mut expected_epochs = vec![2];
    trained.push(&place(&memory), 2).unwrap();
    for requests in 0.. {
        contents.push(trained.advance(50));
        let epoch = contents.len() as u64;
        let cut = hooked(&memory, fail_after(requests));
        let result = trained.push(&cut, 2);
        let finished = result.is_ok();
        let visible = epochs(&place(&memory));
        assert!(visible.starts_with(&expected_epochs) || visible.ends_with(&[epoch]), "{visible:?}");
        for &epoch in &visible {
            assert_restores(&place(&memory), Some(epoch), &contents[epoch as usize - 1]);
        }
        if let Err(error) = result {
            assert!(error.to_string().contains("memory:///runs/a"), "{error}");
        }
        if finished {
            break;
        }
        trained.push(&place(&memory), 2).unwrap();
        assert_nothing_is_left_over(&memory);
        expected_epochs = epochs(&place(&memory));
        assert_eq!(expected_epochs.last(), Some(&epoch));
    }
}

#[test]
fn of_two_concurrent_writers_the_second_fails() {
    let memory: Arc<InMemory> = Arc::default();
    let mut first = Trained::new();
    first.advance(ROWS);
    first.push(&place(&memory), 3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    restore(&place(&memory), folder.path(), None, NEVER).unwrap();
    let mut second = Trained::open(folder.path());
    second.advance(40);
    second.advance(40);
    let pinned = second.store.pin_checkpoint().unwrap();
    first.advance(70);

    // Just before the first writer makes its checkpoint visible, the second one pushes.
    let remote = before_request("creating", "checkpoints/", &memory, move |memory| {
        push(&pinned, &place(memory), 3, NEVER).unwrap();
    });
    let error = first.push(&remote, 3).unwrap_err();
    assert!(matches!(error, RemoteError::Conflict { epoch: 2, other: 3, .. }), "{error}");
    assert_restores(&place(&memory), None, &second.content());

    // All later pushes fail too, because the checkpoint at the URL is not its past; also once its number is
    // larger.
    for _ in 0..3 {
        let error = first.push(&place(&memory), 3).unwrap_err();
        assert!(matches!(error, RemoteError::Foreign { latest: 3, .. }), "{error}");
        first.advance(10);
    }
    let mut other = Trained::new();
    other.advance(10);
    let error = other.push(&place(&memory), 3).unwrap_err();
    assert!(error.to_string().contains("holds checkpoint 3 of another writer"), "{error}");
    second.advance(10);
    second.push(&place(&memory), 1).unwrap();
    assert_nothing_is_left_over(&memory);
}

#[test]
fn a_slow_writer_cannot_take_the_number_of_a_removed_checkpoint() {
    // After 70 pushes the number is free again, but the objects of its checkpoint are gone.
    for pushes in [3, 70] {
        let memory: Arc<InMemory> = Arc::default();
        let mut trained = Trained::new();
        trained.advance(ROWS);
        let slow = trained.store.pin_checkpoint().unwrap();
        let remote = before_request("creating", "checkpoints/", &memory, move |memory| {
            for _ in 0..pushes {
                trained.advance(100);
                trained.push(&place(memory), 1).unwrap();
            }
        });
        let error = push(&slow, &remote, 1, NEVER).unwrap_err();
        assert!(
            matches!(error, RemoteError::Conflict { epoch: 1, other, .. } if other == pushes + 1),
            "{error}"
        );
        assert_eq!(epochs(&place(&memory)), [pushes + 1]);
        assert_nothing_is_left_over(&memory);
    }
}

#[test]
fn a_checkpoint_removed_during_its_restore_is_not_reported_as_damaged() {
    let memory: Arc<InMemory> = Arc::default();
    let mut trained = Trained::new();
    trained.advance(ROWS);
    trained.push(&place(&memory), 1).unwrap();
    let remote = before_request("reading", "/parts/", &memory, move |memory| {
        trained.advance(ROWS);
        trained.push(&place(memory), 1).unwrap();
    });
    let folder = tempfile::tempdir().unwrap();
    let error = restore(&remote, folder.path(), None, NEVER).unwrap_err();
    assert_eq!(error.to_string(), "no checkpoint 1 at memory:///runs/a; it was removed meanwhile");
}

#[test]
fn a_table_without_rows_is_restored_for_readers_and_writers() {
    let memory: Arc<InMemory> = Arc::default();
    let mut trained = Trained::new();
    let spec = TableSpec { dim: 2 * DIM as u32, ..*trained.table.spec() };
    // With enough memory for two groups.
    trained.store.close();
    let options = StoreOptions { memory: 32 << 20, ..StoreOptions::default() };
    trained.store = Store::open(trained.own_folder.as_ref().unwrap().path(), options).unwrap();
    trained.table = trained.store.table("t", &TableSpec { dim: DIM as u32, ..spec }).unwrap();
    trained.store.table("empty", &spec).unwrap();
    trained.advance(10);
    trained.push(&place(&memory), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    restore(&place(&memory), folder.path(), None, NEVER).unwrap();
    for read_only in [true, false, true] {
        let options = StoreOptions { memory: 32 << 20, read_only, ..StoreOptions::default() };
        let store = Store::open(folder.path(), options).unwrap();
        assert_eq!(store.open_table("empty").unwrap().len(), 0);
        let mut row = vec![0.0; 2 * DIM];
        store.open_table("empty").unwrap().get(&[1], &mut row).unwrap();
        assert!(row.iter().any(|weight| *weight != 0.0), "the row must have its initial weights");
    }
}

#[test]
fn a_server_without_conditions_is_refused() {
    let memory: Arc<InMemory> = Arc::default();
    let mut trained = Trained::new();
    trained.advance(10);
    // As if the second request overwrote the first object.
    let forgetful = Arc::clone(&memory);
    let hook: Hook = Box::new(move |_, key| {
        if key.ends_with("/probe") {
            let (memory, path) = (Arc::clone(&forgetful), Path::from(format!("runs/a/{key}")));
            let delete =
                move || block_on(NEVER, async { memory.delete(&path).await.map_or(Ok(()), Ok) }).unwrap();
            thread::spawn(delete).join().unwrap();
        }
        Ok(())
    });
    let error = trained.push(&hooked(&memory, hook), 3).unwrap_err();
    assert!(matches!(error, RemoteError::Unconditional { .. }), "{error}");
    assert!(epochs(&place(&memory)).is_empty());
}

#[test]
fn damaged_and_missing_objects_are_named_and_never_restored() {
    let memory: Arc<InMemory> = Arc::default();
    let mut trained = Trained::new();
    let expected = trained.advance(ROWS);
    trained.push(&place(&memory), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut fetched = Vec::new();
    for key in keys(&memory).iter().filter(|key| !key.contains("checkpoints/") && !key.ends_with("/probe")) {
        let path = Path::from(key.as_str());
        let get = async { Ok(memory.get(&path).await.unwrap().bytes().await.unwrap()) };
        let good = block_on(NEVER, get).unwrap();
        let mut bad = good.to_vec();
        let middle = bad.len() / 2;
        bad[middle] ^= 4;
        for bytes in [Some(bad), Some(good[1..].to_vec()), None] {
            let spoil = async {
                memory.delete(&path).await.unwrap();
                if let Some(bytes) = bytes {
                    memory.put(&path, bytes.into()).await.unwrap();
                }
                Ok(())
            };
            block_on(NEVER, spoil).unwrap();
            let target = folder.path().join(key.rsplit('/').next().unwrap());
            let error = restore(&place(&memory), &target, None, NEVER).unwrap_err();
            assert!(matches!(error, RemoteError::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains(key.strip_prefix("runs/a/").unwrap()), "{key}: {error}");
            if target.exists() {
                let options = StoreOptions { memory: 32 << 20, ..StoreOptions::default() };
                let opened = Store::open(&target, options).unwrap_err();
                assert!(matches!(opened, StoreError::Restoring { .. }), "{opened}");
            }
        }
        block_on(NEVER, async { Ok(memory.put(&path, good.into()).await.unwrap()) }).unwrap();
        let target = folder.path().join(key.rsplit('/').next().unwrap());
        let info = restore(&place(&memory), &target, None, NEVER).unwrap();
        fetched.push((info.bytes_downloaded, info.bytes));
        assert!(Trained::open(&target).content() == expected);
    }
    // Parts that a failed restore downloaded are not fetched again.
    let resumed = fetched.iter().filter(|(downloaded, bytes)| *downloaded < bytes / 2).count();
    assert!(resumed > fetched.len() / 4, "{fetched:?}");
}

#[test]
fn a_restore_interrupted_at_any_request_is_completed_by_the_next() {
    let memory: Arc<InMemory> = Arc::default();
    let mut trained = Trained::new();
    trained.advance(ROWS);
    trained.push(&place(&memory), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let older = folder.path().join("begun");
    for requests in 3_u64.. {
        let cut = hooked(&memory, fail_after(requests));
        let Err(error) = restore(&cut, &older, None, NEVER) else { break };
        assert!(error.to_string().contains("cut"), "{error}");
        let opened = Store::open(&older, StoreOptions { memory: 32 << 20, ..StoreOptions::default() });
        assert!(matches!(opened, Err(StoreError::Restoring { .. })));
    }
    drop(Trained::open(&older));
    // Started with one checkpoint, completed with a later one.
    let target = folder.path().join("later");
    let cut = hooked(&memory, fail_after(8));
    restore(&cut, &target, None, NEVER).unwrap_err();
    let expected = trained.advance(2000);
    trained.push(&place(&memory), 1).unwrap();
    restore(&place(&memory), &target, None, NEVER).unwrap();
    let restored = Trained::open(&target);
    assert_eq!(restored.store.checkpoint_epoch(), 2);
    assert!(restored.content() == expected);
    assert!(!target.join("index-1.snapshot").exists());
}

#[test]
fn a_folder_that_is_not_empty_is_refused() {
    let memory: Arc<InMemory> = Arc::default();
    let mut trained = Trained::new();
    trained.advance(ROWS);
    trained.push(&place(&memory), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("mine")).unwrap();
    let error = restore(&place(&memory), folder.path(), None, NEVER).unwrap_err();
    assert!(
        error.to_string().ends_with(r#"is not empty, it holds "mine": restore to a new or empty folder"#),
        "{error}"
    );
    std::fs::remove_dir(folder.path().join("mine")).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    restore(&place(&memory), folder.path(), None, NEVER).unwrap();
    let error = restore(&place(&memory), folder.path(), None, NEVER).unwrap_err();
    assert!(matches!(error, RemoteError::Occupied { .. }), "{error}");
}

#[test]
fn errors_for_invalid_urls_name_valid_ones() {
    for url in
        ["", "store", "/a/b", "ftp://host/x", "s3://", "s3://k:s@bucket/x", "s3://b/x?y", "memory:///x"]
    {
        let error = Remote::open(url).unwrap_err().to_string();
        assert!(error.contains("give s3://, gs://, az:// or file://"), "{url}: {error}");
    }
    let error = checkpoints(&Remote::open("file:///nowhere/at/all").unwrap(), NEVER);
    assert_eq!(error.unwrap(), []);
}

#[test]
fn a_caller_that_stops_waiting_can_use_the_thread_again() {
    let memory: Arc<InMemory> = Arc::default();
    let mut trained = Trained::new();
    trained.advance(ROWS);
    let never_ready = std::future::pending::<Result<(), RemoteError>>();
    assert!(matches!(block_on(&|| true, never_ready), Err(RemoteError::Interrupted)));
    trained.push(&place(&memory), 1).unwrap();
}
