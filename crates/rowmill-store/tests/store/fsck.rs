//! `fsck`: check and repair of damaged stores.
//!
//! What could break: a check misses damage; a repair keeps a row that is not intact, loses an intact one, or
//! does not list a lost row; a power failure during a repair makes things worse. Files of every kind are
//! damaged at random places. Every row must be kept bit for bit, or listed as lost.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use crate::common::*;
use rowmill_store::*;
use rowmill_testkit::{FaultyVolume, Rng64};

const SEED_VARIABLE: &str = "ROWMILL_FSCK_SEED";
const CASES: u64 = 240;
const NOTES: &[u8] = b"of the caller";

type Files = BTreeMap<String, Vec<u8>>;
/// Weights and state by table and id.
type Content = BTreeMap<(String, u64), Vec<u32>>;

fn store_options() -> StoreOptions {
    StoreOptions { threads: 1, ..options(Some(768 << 10)) }
}

fn names_and_specs() -> [(&'static str, TableSpec); 3] {
    let first = TableSpec { staleness: StalenessBound::Infinite, ..spec(16, ADAGRAD) };
    [
        ("users", first),
        ("items", TableSpec { ids: IdRange::Dense { rows: 1000 }, ..first }),
        ("wide", TableSpec { dim: 300, ..first }),
    ]
}

/// A store with a snapshot, deltas, deleted rows and an attachment.
fn original(deletes: bool) -> Files {
    let volume = MemoryVolume::new();
    let store = open(&volume, &store_options());
    let mut rng = Rng64::new(4);
    for round in 0..5_u64 {
        for (name, spec) in names_and_specs() {
            let table = store.table(name, &spec).unwrap();
            let universe = if name == "wide" { 120 } else { 900 };
            let ids: Vec<u64> = if round == 0 {
                (0..universe).collect()
            } else {
                (0..150).map(|_| rng.below(universe)).collect()
            };
            for ids in ids.chunks(60) {
                let values = gradients(&mut rng, ids.len() * spec.dim as usize);
                table.rmw(ids, &values, None, None).unwrap();
            }
            if deletes && round == 2 {
                table.delete(&[3, 5, 8, 13]).unwrap();
            }
        }
        store.checkpoint(&[("notes", NOTES)]).unwrap();
    }
    store.close();
    let names = volume.list().unwrap();
    names.into_iter().map(|name| (name.clone(), read(&volume, &name))).collect()
}

fn read(volume: &dyn Volume, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    volume.open(name).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

fn write_all(volume: &dyn Volume, files: &Files) {
    for (name, bytes) in files {
        let mut file = volume.create(name).unwrap();
        file.write_all(bytes).unwrap();
        file.sync().unwrap();
    }
    volume.sync().unwrap();
}

fn content(volume: &Arc<dyn Volume>) -> Content {
    let options = StoreOptions { read_only: true, ..store_options() };
    let store = Store::open_volume(Arc::clone(volume), options).unwrap();
    let mut content = Content::new();
    for name in store.table_names() {
        let table = store.open_table(&name).unwrap();
        let mut ids = Vec::new();
        table
            .scan(64, |some, _| {
                ids.extend_from_slice(some);
                true
            })
            .unwrap();
        assert_eq!(ids.len(), table.len());
        for id in ids {
            let mut row = vec![0.0; table.spec().dim as usize];
            let mut state = vec![0.0; table.state_floats()];
            table.get(&[id], &mut row).unwrap();
            table.get_state(&[id], &mut state).unwrap();
            row.extend(state);
            content.insert((name.clone(), id), row.iter().map(|value| value.to_bits()).collect());
        }
    }
    content
}

fn memory_of(files: &Files) -> Arc<dyn Volume> {
    let volume = MemoryVolume::new();
    write_all(&volume, files);
    Arc::new(volume)
}

/// Kept rows must be unchanged; all other rows must be listed or counted.
fn account(whole: &Content, kept: &Content, report: &FsckReport, what: &str) {
    let mut missing: BTreeMap<&str, u64> = BTreeMap::new();
    for (key, row) in kept {
        assert_eq!(whole.get(key), Some(row), "{what}: row {key:?} was kept with other content");
    }
    for key in whole.keys().filter(|key| !kept.contains_key(key)) {
        if !report.dropped.contains(key) {
            *missing.entry(&key.0).or_default() += 1;
        }
    }
    assert!(!report.dropped.iter().any(|key| kept.contains_key(key)), "{what}: a row is kept and dropped");
    for (table, count) in missing {
        let of_table = |text: &&String| text.contains(&format!("rows of table {table:?}"));
        let text = report.unnamed.iter().find(of_table).cloned().unwrap_or_default();
        let told = text.split(' ').find_map(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let right = told == count || (told > count && text.starts_with("up to "));
        assert!(right, "{what}: {count} rows of {table} are lost, reported were {:?}", report.unnamed);
    }
}

/// Damage a file. Returns a description.
fn damage(files: &mut Files, rng: &mut Rng64) -> String {
    let kinds = [".log", ".log", ".delta", ".snapshot", "attachment-"];
    let kind = kinds[rng.below(5) as usize];
    let named = String::from_utf8(files["MANIFEST"].clone()).unwrap();
    let names: Vec<String> = (files.iter())
        .filter(|(name, bytes)| name.contains(kind) && named.contains(name.as_str()) && !bytes.is_empty())
        .map(|(name, _)| name.clone())
        .collect();
    if names.is_empty() {
        return format!("no {kind} is left");
    }
    let name = names[rng.below(names.len() as u64) as usize].clone();
    let bytes = files.get_mut(&name).unwrap();
    let at = rng.below(bytes.len() as u64) as usize;
    match rng.below(12) {
        0 => {
            bytes.truncate(at);
            format!("{name} cut at {at}")
        }
        1 => {
            files.remove(&name);
            format!("{name} removed")
        }
        2 | 3 => {
            let end = (at + 20_000).min(bytes.len());
            bytes[at..end].fill(0);
            format!("{name} zeroed from {at} to {end}")
        }
        _ => {
            bytes[at] ^= 1 << rng.below(8);
            format!("a bit of {name} at {at}")
        }
    }
}

#[test]
fn a_clean_store_passes_and_a_repair_changes_nothing() {
    let files = original(true);
    for kind in [".snapshot", ".delta", ".log", "attachment-"] {
        assert!(files.keys().any(|name| name.contains(kind)), "no {kind} among {:?}", files.keys());
    }
    let volume = memory_of(&files);
    let whole = content(&volume);
    for repair in [false, true] {
        let report = fsck(&volume, repair).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        assert_eq!((report.rows, report.epoch, report.repaired), (whole.len() as u64, 5, None));
        assert!(report.blocks > 20 && report.segments > 5 && report.files > 4, "{report:?}");
    }
    for (name, bytes) in &files {
        assert!(read(&*volume, name) == *bytes, "{name} was changed");
    }
    assert_eq!(volume.list().unwrap().len(), files.len());
}

#[test]
fn every_row_of_a_damaged_store_is_unchanged_or_listed() {
    let originals = [original(false), original(true)];
    let wholes = originals.each_ref().map(|files| content(&memory_of(files)));
    let chosen = std::env::var(SEED_VARIABLE).ok().map(|seed| seed.parse::<u64>().unwrap());
    let (mut clean, mut lossless, mut lossy) = (0, 0, 0);
    for seed in chosen.map_or(0..CASES, |seed| seed..seed + 1) {
        let mut rng = Rng64::new(seed);
        let which = rng.below(2) as usize;
        let mut files = originals[which].clone();
        let mut done = Vec::new();
        for _ in 0..=rng.below(3) {
            done.push(damage(&mut files, &mut rng));
        }
        let what = format!("{SEED_VARIABLE}={seed}: {}", done.join(", "));
        let volume = memory_of(&files);
        let found = fsck(&volume, false).unwrap();
        let report = fsck(&volume, true).unwrap();
        assert_eq!(found.problems, report.problems, "{what}");
        assert_eq!(report.is_clean(), report.repaired.is_none(), "{what}");
        let kept = content(&volume);
        account(&wholes[which], &kept, &report, &what);
        let again = fsck(&volume, false).unwrap();
        assert!(again.is_clean() && again.rows == kept.len() as u64, "{what}: {:?}", again.problems);
        if report.is_clean() {
            assert!(kept == wholes[which], "{what} was not seen");
            clean += 1;
        } else {
            assert!(volume.list().unwrap().contains(&"MANIFEST-5.damaged".to_owned()));
            if kept == wholes[which] { lossless += 1 } else { lossy += 1 }
        }
        // The repaired store can be used.
        let store = Store::open_volume(Arc::clone(&volume), store_options()).unwrap();
        let table = store.open_table("users").unwrap();
        table.put(&[1, 2, 3], &[1.0; 48], None).unwrap();
        store.checkpoint(&[]).unwrap();
        store.close();
        assert!(fsck(&volume, false).unwrap().is_clean(), "{what}");
    }
    println!("{clean} damages of unnamed files, {lossless} repaired without losses, {lossy} with losses");
    assert!(chosen.is_some() || (clean > 3 && lossless > 10 && lossy > 50), "{clean} {lossless} {lossy}");
}

/// Power fails at every change that a repair makes, one after the other.
#[test]
fn an_interrupted_repair_loses_no_intact_row() {
    let mut files = original(true);
    let log = files.get_mut("group-0.log").unwrap();
    log[5000] ^= 1;
    files.get_mut("index-5.delta").unwrap()[20] ^= 1;
    let expected = {
        let volume = memory_of(&files);
        fsck(&volume, true).unwrap();
        content(&volume)
    };
    let mut cut_short = 0;
    for change in 1..200 {
        let machine = FaultyVolume::over_memory(MemoryVolume::crashable(), change);
        write_all(&machine, &files);
        machine.lose_power_in(change);
        let volume: Arc<dyn Volume> = Arc::new(machine.clone());
        let result = fsck(&volume, true);
        if !machine.has_crashed() {
            result.unwrap();
            break;
        }
        cut_short += 1;
        let found: Arc<dyn Volume> = Arc::new(machine.crash().volume);
        fsck(&found, true).unwrap();
        assert!(content(&found) == expected, "cut short in change {change}");
    }
    assert!((10..199).contains(&cut_short), "{cut_short}");
}

#[test]
fn stores_that_are_unreadable_or_in_use_are_refused_and_not_changed() {
    let files = original(true);
    let volume = memory_of(&files);
    let store = Store::open_volume(Arc::clone(&volume), store_options()).unwrap();
    let error = fsck(&volume, true).unwrap_err();
    assert!(matches!(error, StoreError::Device(rowmill_io::DeviceError::Locked { .. })), "{error}");
    assert!(fsck(&volume, false).unwrap().is_clean(), "a check may run beside a writer");
    store.close();

    let empty: Arc<dyn Volume> = Arc::new(MemoryVolume::new());
    assert!(matches!(fsck(&empty, true), Err(StoreError::Missing { .. })));
}

/// Damage a manifest that has copies beside it. Both a check and a repair must fail.
fn repair_manifest(files: &Files) -> (Arc<dyn Volume>, Result<FsckReport, StoreError>) {
    let volume = memory_of(files);
    let error = fsck(&volume, false).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    let repaired = fsck(&volume, true);
    if let Err(error) = &repaired {
        let text = error.to_string();
        assert!(text.contains("MANIFEST") && text.contains("rowmill restore"), "{text}");
        for (name, bytes) in files {
            assert!(read(&*volume, name) == *bytes, "{name} was changed");
        }
        assert_eq!(volume.list().unwrap().len(), files.len());
    }
    (volume, repaired)
}

#[test]
fn a_damaged_manifest_is_replaced_by_another_if_its_files_are_intact() {
    let files = original(true);
    let whole = content(&memory_of(&files));
    let manifest = files["MANIFEST"].clone();
    let damaged = |at: usize| {
        let mut bytes = manifest.clone();
        bytes[at] ^= 1;
        bytes
    };
    let mut rng = Rng64::new(11);
    for name in ["MANIFEST.new", "MANIFEST-kept"] {
        for round in 0..6 {
            let mut files = files.clone();
            files.insert(name.into(), manifest.clone());
            // An older manifest that is no longer a valid checkpoint is skipped, whatever its name.
            files.insert("MANIFEST-5.damaged".into(), damaged(300));
            let at = rng.below(manifest.len() as u64) as usize;
            files.insert("MANIFEST".into(), if round == 1 { Vec::new() } else { damaged(at) });
            if round == 0 {
                files.remove("MANIFEST");
            }
            let (volume, report) = repair_manifest(&files);
            let report = report.unwrap();
            assert_eq!(
                (report.repaired, report.rows, report.dropped.len()),
                (Some(5), whole.len() as u64, 0)
            );
            assert!(
                report.problems[0].contains("MANIFEST") && report.unnamed[0].contains(name),
                "{report:?}"
            );
            assert_eq!(content(&volume), whole);
            assert!(fsck(&volume, false).unwrap().is_clean());
            if let Some(before) = files.get("MANIFEST") {
                assert_eq!(read(&*volume, "MANIFEST.damaged"), *before);
            }
        }
    }
    // No other manifest; a damaged copy; a copy that names a missing or damaged file.
    let mut without = files.clone();
    without.insert("MANIFEST".into(), damaged(200));
    assert!(repair_manifest(&without).1.is_err());
    without.insert("MANIFEST-kept".into(), damaged(250));
    assert!(repair_manifest(&without).1.is_err());
    without.insert("MANIFEST-kept".into(), manifest.clone());
    for name in ["index-5.delta", "group-0.log", "attachment-5-notes"] {
        let mut without = without.clone();
        without.get_mut(name).unwrap().chunks_mut(4096).for_each(|block| block[20.min(block.len() - 1)] ^= 1);
        assert!(repair_manifest(&without).1.is_err(), "{name} is damaged");
        without.remove(name);
        assert!(repair_manifest(&without).1.is_err(), "{name} is missing");
    }
}

#[test]
fn a_copy_of_an_old_manifest_is_refused_once_its_files_are_reused() {
    let volume = MemoryVolume::new();
    let store = open(&volume, &store_options());
    let table = store.table("t", &spec(16, ADAGRAD)).unwrap();
    let rewrite = |round: u64| {
        for first in (0..4000).step_by(200) {
            let ids: Vec<u64> = (first..first + 200).collect();
            table.put(&ids, &[round as f32; 200 * 16], None).unwrap();
        }
        store.checkpoint(&[]).unwrap();
    };
    rewrite(1);
    let old = read(&volume, "MANIFEST");
    (2..6).for_each(rewrite);
    store.close();
    let names = volume.list().unwrap();
    let mut files: Files = names.into_iter().map(|name| (name.clone(), read(&volume, &name))).collect();
    files.insert("MANIFEST-old".into(), old);
    files.get_mut("MANIFEST").unwrap()[100] ^= 1;
    assert!(repair_manifest(&files).1.is_err());
}

/// An index with correct checksums that gives one row to two ids.
#[test]
fn an_index_entry_with_the_row_of_another_id_is_dropped() {
    let mut files = original(true);
    let whole = content(&memory_of(&files));
    let delta = files.get_mut("index-5.delta").unwrap();
    // The header of the file is 16 bytes, that of the frame 8. A record is id, category and row number.
    let length = u32::from_le_bytes(delta[16..20].try_into().unwrap()) as usize;
    assert_eq!(delta.len(), 24 + length, "one frame");
    let key = |at: usize| (delta[at + 8], u64::from_le_bytes(delta[at..at + 8].try_into().unwrap()));
    // The last two ids of a table: a row that was written again has a later record.
    let other = 8 + length;
    let records = (24..other).step_by(16).rev();
    let mut of_table = records.filter(|&at| key(at).0 == key(other).0 && key(at) != key(other));
    let one = of_table.next().unwrap();
    let (category, id) = key(one);
    delta.copy_within(other + 12..other + 16, one + 12);
    let crc = rowmill_io::crc32c(&0_u64.to_le_bytes());
    let crc =
        rowmill_io::crc32c_append(rowmill_io::crc32c_append(crc, &delta[16..20]), &delta[24..24 + length]);
    delta[20..24].copy_from_slice(&crc.to_le_bytes());
    let crc = rowmill_io::crc32c(delta);
    let manifest = String::from_utf8(files["MANIFEST"].clone()).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(manifest.split_once('\n').unwrap().1).unwrap();
    let entries = json["deltas"].as_array_mut().unwrap();
    entries.iter_mut().find(|entry| entry["name"] == "index-5.delta").unwrap()["crc"] = crc.into();
    let json = json.to_string();
    let line =
        format!("rowmill-manifest 1 {:08x} {}\n{json}", rowmill_io::crc32c(json.as_bytes()), json.len());
    files.insert("MANIFEST".into(), line.into_bytes());

    let volume = memory_of(&files);
    let report = fsck(&volume, true).unwrap();
    let problems = report.problems.join("; ");
    assert!(problems.contains("2 entries of the index name row"), "{problems}");
    assert!(problems.contains(&format!("the index has category {category} id {id} at row")), "{problems}");
    assert_eq!(report.dropped.len(), 1);
    assert_eq!(report.dropped[0].1, id);
    let kept = content(&volume);
    account(&whole, &kept, &report, "two entries for a row");
    assert_eq!(kept.len() + 1, whole.len());
}
