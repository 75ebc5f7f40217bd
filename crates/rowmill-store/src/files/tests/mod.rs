//! Tests of the files of a checkpoint.
//!
//! What could break: files are read back changed or truncated, or belong to another checkpoint or build;
//! writing stops in the middle; power fails between two steps. `golden` holds files of format version 1 as
//! first written, `crash` tests power failures.

mod crash;
mod damage;
mod golden;
mod round_trip;

use rowmill_io::{MemoryVolume, Volume};
use rowmill_rows::{
    Category, Dtype, Eviction, EvictionRule, GroupSpec, IdRange, Initializer, OptimizerSpec, RowKey,
    StalenessBound, TableSpec,
};

use super::delta::DeltaWriter;
use super::error::FileError;
use super::*;

/// A change of the index.
type Change = (RowKey, Option<u32>);
/// Category, id and row number in a snapshot.
type Entry = (u32, u64, u32);

fn key(category: u32, id: u64) -> RowKey {
    RowKey { category: Category(category), id }
}

fn table_spec(dim: u32) -> TableSpec {
    TableSpec {
        dim,
        dtype: Dtype::F32,
        optimizer: OptimizerSpec::Adagrad { lr: 0.02, eps: 1e-10, initial_accumulator: 0.1 },
        initializer: Initializer::Uniform { low: -0.05, high: 0.05 },
        staleness: StalenessBound::Steps(4),
        ids: IdRange::Sparse,
        eviction: None,
        admission: None,
    }
}

fn group_entry(spec: GroupSpec) -> GroupEntry {
    GroupEntry {
        spec,
        shards: 4,
        stride: spec.layout().stride as u32,
        segment_bytes: 1 << 20,
        log_device: "group-0.log".into(),
        log: serde_json::from_str(r#"{"cut":2,"next_sequence":9,"segments":[[0,7,64],[2,8,3]]}"#).unwrap(),
    }
}

/// A manifest with a value in every field.
fn manifest(epoch: u64) -> Manifest {
    let spec = table_spec(16);
    let table = |name: &str, category| TableEntry {
        name: name.into(),
        category: Category(category),
        group: 0,
        spec,
        steps: 1000,
        rows: 67,
        accesses: u64::from(u32::MAX) + 5,
        births: 70,
        deletes: 2,
        evicted: 1,
        hot: vec![(u64::MAX, 12), (3, 5)],
    };
    Manifest {
        format_version: FORMAT_VERSION,
        epoch,
        seed: 0xfedc_ba98_7654_3210,
        created_by: "0.1.0".into(),
        lineage: vec![(1, 0x0123_4567_89ab_cdef), (epoch, u64::MAX)],
        groups: vec![group_entry(spec.group())],
        tables: vec![table("users", 0), table("ünïcode \"items\"", 1)],
        event_time: Some(1_700_000_000),
        snapshot: None,
        deltas: vec![],
        history: vec![],
        feed: 0,
        attachments: vec![],
        sketches: vec![],
        rows: None,
        versions: vec![],
        moves: vec![],
    }
}

fn write_delta(volume: &dyn Volume, epoch: u64, changes: &[Change]) -> FileEntry {
    let mut writer = DeltaWriter::create(volume, epoch).unwrap();
    for &(key, row) in changes {
        writer.record(key, row).unwrap();
    }
    writer.finish().unwrap()
}

/// All changes up to the first error, and the error.
fn read_delta(volume: &dyn Volume, file: &FileEntry) -> (Vec<Change>, Result<(), FileError>) {
    let mut changes = Vec::new();
    let result = DeltaReader::open(volume, file).and_then(|reader| {
        reader.for_each(|key, row| {
            changes.push((key, row));
            Ok(())
        })
    });
    (changes, result)
}

fn write_snapshot(volume: &dyn Volume, epoch: u64, entries: &[Entry]) -> FileEntry {
    let mut writer = SnapshotWriter::create(volume, epoch).unwrap();
    for &(category, id, row) in entries {
        writer.push(Category(category), id, row).unwrap();
    }
    writer.finish().unwrap()
}

/// All entries up to the first error, and the error.
fn read_snapshot(volume: &dyn Volume, file: &FileEntry) -> (Vec<Entry>, Result<(), FileError>) {
    let mut entries = Vec::new();
    let result = SnapshotReader::open(volume, file).and_then(|reader| {
        reader.for_each_chunk(|category, ids, rows| {
            assert_eq!(ids.len(), rows.len());
            entries.extend(ids.iter().zip(rows).map(|(&id, &row)| (category.0, id, row)));
            Ok(())
        })
    });
    (entries, result)
}

fn read_file(volume: &dyn Volume, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    volume.open(name).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

fn write_file(volume: &dyn Volume, name: &str, bytes: &[u8]) {
    let mut file = volume.create(name).unwrap();
    file.write_all(bytes).unwrap();
    file.sync().unwrap();
}

fn volume() -> MemoryVolume {
    MemoryVolume::new()
}
