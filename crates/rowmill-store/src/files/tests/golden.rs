//! Files of format version 1, written by the build that introduced it, must stay readable. If one of these
//! tests fails, the format has changed: raise the version and continue to read the old one.

use std::fs;
use std::path::PathBuf;

use rowmill_log::RowSet;

use super::*;
use crate::files::moves::MovesWriter;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-1")
}

fn golden_changes() -> Vec<Change> {
    vec![(key(0, 0), Some(0)), (key(1, u64::MAX), Some((1 << 31) - 1)), (key(0, 0x0123_4567_89ab_cdef), None)]
}

fn golden_entries() -> Vec<Entry> {
    vec![(0, 0, 5), (0, u64::MAX, 6), (1, 0x0123_4567_89ab_cdef, (1 << 31) - 1)]
}

fn golden_checkpoint(volume: &dyn Volume) -> Manifest {
    // Written before manifests had a lineage.
    let mut written = Manifest { lineage: Vec::new(), event_time: None, ..manifest(2) };
    // Written before these were counted.
    written.tables.iter_mut().for_each(|table| (table.deletes, table.evicted) = (0, 0));
    let spec = TableSpec {
        optimizer: OptimizerSpec::Sgd { lr: 0.1 },
        initializer: Initializer::Zeros,
        staleness: StalenessBound::Infinite,
        ids: IdRange::Dense { rows: 1000 },
        ..table_spec(8)
    };
    let group = GroupEntry { log_device: "group-1.log".into(), ..group_entry(spec.group()) };
    let table = TableEntry {
        name: "dense".into(),
        category: Category(2),
        group: 1,
        spec,
        ..written.tables[0].clone()
    };
    written.groups.push(group);
    written.tables.push(table);
    written.snapshot = Some(write_snapshot(volume, 1, &golden_entries()));
    written.deltas = vec![write_delta(volume, 2, &golden_changes())];
    written.attachments = vec![save_attachment(volume, 2, "dense.pt", b"dense weights").unwrap()];
    written.save(volume).unwrap();
    written
}

#[test]
fn format_1_is_read() {
    let volume = volume();
    for file in fs::read_dir(folder()).unwrap() {
        let file = file.unwrap();
        write_file(&volume, file.file_name().to_str().unwrap(), &fs::read(file.path()).unwrap());
    }
    let found = Manifest::load(&volume).unwrap();
    assert_eq!(found, golden_checkpoint(&MemoryVolume::new()));
    let (changes, result) = read_delta(&volume, &found.deltas[0]);
    result.unwrap();
    assert_eq!(changes, golden_changes());
    let (entries, result) = read_snapshot(&volume, found.snapshot.as_ref().unwrap());
    result.unwrap();
    assert_eq!(entries, golden_entries());
    assert_eq!(load_attachment(&volume, &found.attachments[0]).unwrap(), b"dense weights");
}

fn golden_versions(volume: &dyn Volume) -> (Manifest, Vec<Vec<u32>>) {
    let rows = |rows: &[u32]| {
        let set = RowSet::default();
        for &row in rows {
            set.insert(row);
        }
        [set]
    };
    let mut kept = Manifest { lineage: Vec::new(), event_time: None, ..manifest(2) };
    kept.snapshot = Some(write_snapshot(volume, 1, &golden_entries()));
    kept.rows = Some(save_row_sets(volume, 2, &rows(&[0, 63, 64, 130, 500])).unwrap());
    let file = save_version(volume, &kept).unwrap();
    let mut writer = MovesWriter::create(volume, 3).unwrap();
    for (group, old, new) in [(0, 63, 7), (1, 0, 9), (0, 7, 1000)] {
        writer.record(Move { key: key(0, u64::MAX), group, old, new }).unwrap();
    }
    let moves = writer.finish().unwrap();
    let entry = VersionEntry {
        epoch: 2,
        name: "step-20".into(),
        made: 1_700_000_000,
        step: Some(20),
        metric: Some(0.75),
        manifest: file,
        rows: kept.rows.clone().unwrap(),
    };
    let mut latest = Manifest { epoch: 3, versions: vec![entry], moves: vec![moves], ..kept };
    latest.rows = Some(save_row_sets(volume, 3, &rows(&[1, 5])).unwrap());
    let latest = latest.stamped();
    latest.save(volume).unwrap();
    (latest, vec![vec![0, 64, 130, 500, 1000]])
}

/// Run with `--ignored`; only until a release uses this version.
#[test]
#[ignore = "writes the files that versions_of_format_5_are_read reads"]
fn write_golden_versions() {
    let volume = volume();
    golden_versions(&volume);
    let folder = folder().with_file_name("format-5");
    fs::create_dir_all(&folder).unwrap();
    for name in volume.list().unwrap() {
        fs::write(folder.join(&name), read_file(&volume, &name)).unwrap();
    }
}

#[test]
fn versions_of_format_5_are_read() {
    let volume = volume();
    let folder = folder().with_file_name("format-5");
    for file in fs::read_dir(folder).unwrap() {
        let file = file.unwrap();
        write_file(&volume, file.file_name().to_str().unwrap(), &fs::read(file.path()).unwrap());
    }
    let found = Manifest::load(&volume).unwrap();
    let (expected, rows) = golden_versions(&MemoryVolume::new());
    assert_eq!(found, expected);
    let version = load_version(&volume, &found, &found.versions[0]).unwrap();
    assert_eq!((version.epoch, version.format_version), (2, 5));
    assert_eq!(version.deltas, found.moves);
    assert_eq!(version.groups, found.groups);
    let sets = load_row_sets(&volume, &found.versions[0].rows, 1, &found.moves).unwrap();
    assert_eq!(sets.iter().map(|set| set.rows().collect::<Vec<_>>()).collect::<Vec<_>>(), rows);
}

/// Builds without eviction refuse tables with eviction, and only those.
#[test]
fn only_tables_that_evict_need_format_2() {
    let volume = volume();
    let mut written = golden_checkpoint(&volume);
    assert!(read_file(&volume, "MANIFEST").starts_with(b"rowmill-manifest 1 "));
    let rule = EvictionRule::TtlSteps { steps: 9 };
    written.tables[2].spec.eviction = Some(Eviction { rule, every: 4 });
    written.groups[1].spec.stamped = true;
    written.groups[1].stride = written.groups[1].spec.layout().stride as u32;
    written.format_version = 2;
    written.save(&volume).unwrap();
    assert!(read_file(&volume, "MANIFEST").starts_with(b"rowmill-manifest 2 "));
    assert_eq!(Manifest::load(&volume).unwrap(), written);
}

/// Builds without bf16 or split-bf16 refuse such tables, and only those. With eviction as well, the higher
/// version is used.
#[test]
fn only_tables_of_halves_need_formats_3_and_4() {
    for (dtype, version, says) in
        [(Dtype::Bf16, 3, r#""dtype":"bf16""#), (Dtype::SplitBf16, 4, r#""dtype":"split_bf16""#)]
    {
        let volume = volume();
        let mut written = golden_checkpoint(&volume);
        written.tables[0].spec.eviction =
            Some(Eviction { rule: EvictionRule::LowestNorm { max_rows: 9 }, every: 0 });
        written.tables[2].spec.dtype = dtype;
        written.groups[1].spec.dtype = dtype;
        written.groups[1].stride = written.groups[1].spec.layout().stride as u32;
        written.format_version = version;
        written.save(&volume).unwrap();
        let bytes = read_file(&volume, "MANIFEST");
        assert!(bytes.starts_with(format!("rowmill-manifest {version} ").as_bytes()));
        assert!(String::from_utf8(bytes).unwrap().contains(says));
        assert_eq!(Manifest::load(&volume).unwrap(), written);
    }
}

/// `cargo test -p rowmill-store write_golden_files -- --ignored`; only until a release uses this version.
#[test]
#[ignore = "writes the files that format_1_is_read reads"]
fn write_golden_files() {
    let volume = volume();
    golden_checkpoint(&volume);
    fs::create_dir_all(folder()).unwrap();
    for name in volume.list().unwrap() {
        fs::write(folder().join(&name), read_file(&volume, &name)).unwrap();
    }
}
