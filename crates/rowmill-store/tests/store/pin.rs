//! Pinned checkpoints: a checkpoint is copied while training continues.
//!
//! What could break: a later checkpoint overwrites a segment or removes a file that is not copied yet, or
//! keeps them forever after the copy. The test pins a checkpoint, changes every row and makes many more
//! checkpoints. Only then it copies part by part: the copy must equal the pinned checkpoint bit for bit. Also
//! tested: when pinning is refused, and a folder with an unfinished restore.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::*;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const ROWS: u64 = 4000;

fn open_folder(path: &Path, read_only: bool) -> Arc<Store> {
    let options = StoreOptions { create: !read_only, read_only, ..options(Some(256 << 10)) };
    Store::open(path, options).unwrap()
}

fn train(table: &Table, rng: &mut Rng64) {
    let ids: Vec<u64> = (0..ROWS).collect();
    table.rmw(&ids, &gradients(rng, ids.len() * 16), None, None).unwrap();
}

/// Weights and state of every row.
fn content(table: &Table) -> Vec<f32> {
    let ids: Vec<u64> = (0..ROWS).collect();
    let (mut weights, mut state) = (vec![0.0; ids.len() * 16], vec![0.0; ids.len() * 16]);
    table.get(&ids, &mut weights).unwrap();
    table.get_state(&ids, &mut state).unwrap();
    weights.extend(state);
    weights
}

fn copy(pinned: &PinnedCheckpoint, folder: &Path) -> Result<(), StoreError> {
    let mut reader = pinned.reader()?;
    for part in pinned.parts() {
        let bytes = reader.read(&part)?;
        assert_eq!(bytes.len() as u64, part.bytes(), "{}", part.name);
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join(&part.file))
            .unwrap();
        let mut rest = &bytes[..];
        for (offset, len) in part.spans {
            let (span, after) = rest.split_at(len as usize);
            file.write_all_at(span, offset).unwrap();
            rest = after;
        }
    }
    Ok(())
}

#[test]
fn a_pinned_checkpoint_survives_later_checkpoints() {
    let (folder, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut rng = Rng64::new(1);
    let store = open_folder(folder.path(), false);
    let table = store.table("t", &spec(16, ADAGRAD)).unwrap();
    train(&table, &mut rng);
    store.checkpoint(&[("model", b"first")]).unwrap();
    let expected = content(&table);
    let pinned = store.pin_checkpoint().unwrap();
    let (epoch, device) = (pinned.epoch(), store.stats().device_used_bytes);

    for _ in 0..10 {
        train(&table, &mut rng);
        store.checkpoint(&[("model", b"later")]).unwrap();
    }
    copy(&pinned, target.path()).unwrap();
    let pinned_bytes = store.stats().device_pinned_bytes;
    assert!(pinned_bytes >= device / 2, "{pinned_bytes} of {device} bytes");
    drop(pinned);
    assert!(store.stats().device_pinned_bytes < pinned_bytes);
    store.checkpoint(&[]).unwrap();
    assert!(!folder.path().join("attachment-1-model").exists());

    let copied = open_folder(target.path(), true);
    assert_eq!(copied.checkpoint_epoch(), epoch);
    assert_eq!(copied.attachment("model").unwrap().unwrap(), b"first");
    assert!(content(&copied.open_table("t").unwrap()) == expected);
}

#[test]
fn damage_is_not_copied() {
    let (folder, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open_folder(folder.path(), false);
    let table = store.table("t", &spec(16, ADAGRAD)).unwrap();
    train(&table, &mut Rng64::new(2));
    store.checkpoint(&[("model", b"dense weights")]).unwrap();
    drop((table, store));
    for name in ["group-0.log", "attachment-1-model", "index-1.delta"] {
        let path = folder.path().join(name);
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[7] ^= 1;
        fs::write(&path, bad).unwrap();
        let store = Store::open(folder.path(), StoreOptions { read_only: true, ..options(None) });
        let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
        let pinned = PinnedCheckpoint::of_volume(Arc::new(volume)).unwrap();
        let error = copy(&pinned, target.path()).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{name}: {error}");
        drop(store);
        fs::write(&path, good).unwrap();
    }
}

#[test]
fn pinning_needs_a_checkpoint_and_no_other_writer() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_folder(folder.path(), false);
    let error = store.pin_checkpoint().unwrap_err();
    assert!(matches!(error, StoreError::NoCheckpoint { .. }), "{error}");
    store.checkpoint(&[]).unwrap();
    let reader = open_folder(folder.path(), true);
    let error = reader.pin_checkpoint().unwrap_err();
    assert!(error.to_string().contains("in use by another process"), "{error}");
    let pinned = store.pin_checkpoint().unwrap();
    store.close();
    // Closed, but still being copied.
    reader.pin_checkpoint().unwrap_err();
    drop(pinned);
    assert_eq!(reader.pin_checkpoint().unwrap().epoch(), 1);
}

#[test]
fn a_pinned_checkpoint_outlives_its_store_and_keeps_the_folder_locked() {
    let (folder, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut rng = Rng64::new(3);
    let store = open_folder(folder.path(), false);
    let table = store.table("t", &spec(16, ADAGRAD)).unwrap();
    train(&table, &mut rng);
    store.checkpoint(&[("model", b"dense weights")]).unwrap();
    let expected = content(&table);
    let pinned = store.pin_checkpoint().unwrap();
    // Later changes are lost with the store and do not affect the checkpoint.
    train(&table, &mut rng);
    store.close();
    assert!(matches!(store.pin_checkpoint(), Err(StoreError::Closed)));
    let writer = || Store::open(folder.path(), options(Some(256 << 10)));
    assert!(writer().unwrap_err().to_string().contains("in use by another process"));
    copy(&pinned, target.path()).unwrap();
    drop((table, store));
    assert!(writer().is_err(), "the checkpoint alone keeps the folder");
    copy(&pinned, target.path()).unwrap();
    drop(pinned);
    writer().unwrap().close();
    let copied = open_folder(target.path(), true);
    assert_eq!(copied.attachment("model").unwrap().unwrap(), b"dense weights");
    assert!(content(&copied.open_table("t").unwrap()) == expected);
}

#[test]
fn pinning_during_a_close_keeps_the_folder_locked_or_fails() {
    let volume = MemoryVolume::new();
    let mut pinned_in_time = 0;
    for _ in 0..100 {
        let store = crate::common::open(&volume, &options(Some(256 << 10)));
        store.checkpoint(&[]).unwrap();
        std::thread::scope(|scope| {
            let pinning = scope.spawn(|| store.pin_checkpoint());
            store.close();
            match pinning.join().unwrap() {
                Ok(pinned) => {
                    pinned_in_time += 1;
                    assert!(volume.lock().is_err(), "another process could write to the folder being copied");
                    drop(pinned);
                }
                Err(error) => assert!(matches!(error, StoreError::Closed), "{error}"),
            }
        });
        drop(volume.lock().unwrap());
    }
    println!("{pinned_in_time} of 100 pinned before the store was closed");
}

#[test]
fn the_lineage_lists_openings_that_made_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let mut lineages = Vec::new();
    for checkpoints in [2, 0, 1] {
        let store = open_folder(folder.path(), false);
        for _ in 0..checkpoints {
            store.checkpoint(&[]).unwrap();
        }
        lineages.push(store.pin_checkpoint().unwrap().lineage().to_vec());
    }
    assert_eq!(lineages[0].len(), 1);
    assert_eq!(lineages[1], lineages[0], "the second opening made no checkpoint");
    assert_eq!(lineages[2][0], lineages[0][0]);
    assert_eq!(lineages[2][1].0, 3);
    assert_ne!(lineages[2][1].1, lineages[2][0].1);
}

#[test]
fn a_folder_with_an_unfinished_restore_is_not_a_store() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(RESTORING), b"{}").unwrap();
    for read_only in [false, true] {
        let error = Store::open(folder.path(), StoreOptions { read_only, ..options(None) }).unwrap_err();
        assert!(matches!(error, StoreError::Restoring { .. }), "{error}");
    }
}
