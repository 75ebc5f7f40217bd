//! Commands on rows, byte by byte.
//!
//! What could break: a layout that changes, so that hosts and nodes of different builds misread each other. The files in
//! `tests/golden` were made from `docs/reference/storage-commands.md`, without this crate. A new version of a layout gets
//! new files.

use rowmill_nvme::*;
use zerocopy::{FromBytes, IntoBytes};

const HANDLE: u64 = 0x1122_3344_5566_7788;
const SEQUENCE: u64 = 0x0102_0304_0506_0708;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/golden/{name}-1.bin", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// A command of 64 bytes, and its data or answer.
fn golden(name: &str) -> (Command, Vec<u8>) {
    let bytes = file(name);
    let (command, data) = Command::read_from_prefix(&bytes).unwrap();
    (command, data.to_vec())
}

#[test]
fn stage() {
    let features = [
        FeatureRequest {
            table: 5,
            pooling: Pooling::Mean,
            offsets: &[0, 2, 2],
            ids: IdsRequest::Eight(&[7, 1 << 40, 9]),
            weights: Some(&[0.5, 2.0, -1.0]),
        },
        FeatureRequest {
            table: 6,
            pooling: Pooling::Sum,
            offsets: &[0],
            ids: IdsRequest::Eight(&[11]),
            weights: None,
        },
    ];
    let encoded = encode_stage(2, HANDLE, Form::Pooled, RowDtype::Bf16, &features);
    assert_eq!(encoded, golden("stage"));
    let (command, data) = golden("stage");
    let stage = Stage::parse(&command, &data, 2).unwrap();
    assert_eq!((stage.handle, stage.form, stage.dtype), (HANDLE, Form::Pooled, RowDtype::Bf16));
    let ids: Vec<Vec<u64>> = stage.features.iter().map(|feature| feature.ids.to_vec()).collect();
    assert_eq!(ids, [vec![7, 1 << 40, 9], vec![11]]);
}

#[test]
fn fetch() {
    let as_of = AsOf { sequence: 1_234_567_890_123, generation: 9 };
    let fetch = Fetch { handle: HANDLE, offset: 2, is_kept: true, takes_damaged: false };
    let result = StagedResult { bytes: vec![1, 2, 3, 4, 5, 6], damaged: 0 };
    assert_eq!((fetch.to_command(2), fetch.encode(&result, as_of, 40)), golden("fetch"));
    // Vectors of 4 bytes, of which the second is damaged.
    let fetch = Fetch { handle: HANDLE, offset: 0, is_kept: false, takes_damaged: true };
    let result = StagedResult { bytes: vec![1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff, 9, 10, 11, 12], damaged: 1 };
    assert_eq!((fetch.to_command(2), fetch.encode(&result, as_of, 44)), golden("fetch-damaged"));
}

#[test]
fn apply() {
    let tables = [TableSpec { name: "users", spec: "{\"dim\":8}" }, TableSpec { name: "tägs", spec: "{}" }];
    assert_eq!(encode_begin(2, 42, &tables), golden("apply-begin"));
    assert_eq!(encode_frame(2, SEQUENCE, 0, b"\x03\0\0\0payload"), golden("apply-frame"));
    assert_eq!((Apply::end(2, SEQUENCE), Vec::new()), golden("apply-end"));
}

#[test]
fn vendor_area_and_tables() {
    let area = VendorArea::new(4096, 1024, 1 << 33, 60);
    assert_eq!(area.as_bytes(), file("area"));
    let dense = TableIndex::Dense { rows: 1_000_000, block: 8, stride: 128 };
    let entry = |table, name: &str, dim, dtype, index| {
        let group = table + 4;
        TableEntry { table, name: name.into(), dim, dtype, index, group }
    };
    let tables = [
        entry(0, "users", 32, RowDtype::Fp32, dense),
        entry(1, "items", 16, RowDtype::Bf16, TableIndex::Hash),
    ];
    assert_eq!(encode_tables(&tables, 9), file("tables"));
}
