//! How much device space versions take.
//!
//! What could break: rows that all versions share exist twice, because cleaning copied them; space of rows that no
//! version needs any more stays taken; each version keeps an index of its own.

use std::collections::BTreeSet;

use rowmill_store::*;
use rowmill_testkit::Rng64;

use crate::common::*;

/// Bytes that the file system allocated to a folder.
fn allocated(folder: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().metadata().map_or(0, |file| file.blocks() * 512)).sum()
}

/// Device bytes over the bytes of the newest version and of the rows that differ between neighbours, at each
/// of many versions. Every id changes with equal chance, which is the worst case: no segment dies as a whole.
fn device_bytes_over_needed(share: f64) -> Vec<f64> {
    const ROWS: u64 = 40_000;
    const DIM: u32 = 128;
    let folder = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        background: Background::Turns { incarnation: 1 },
        threads: 1,
        history: 0,
        ..options(Some(3 << 20))
    };
    let store = Store::open(folder.path(), options).unwrap();
    let table = store.table("t", &spec(DIM, SGD)).unwrap();
    put_numbered(&table, 0, ROWS);
    let mut rng = Rng64::new(5);
    let (mut ratios, mut differ) = (Vec::new(), Vec::new());
    for number in 0..16 {
        let mut changed = BTreeSet::new();
        while (changed.len() as f64) < share * ROWS as f64 {
            let ids: Vec<u64> = (0..500).map(|_| rng.below(ROWS)).collect();
            table.put(&ids, &vec![number as f32; ids.len() * DIM as usize], None).unwrap();
            while store.turn(Work::Write).unwrap() || store.turn(Work::Clean).unwrap() {}
            changed.extend(ids);
        }
        differ.push(changed.len() as u64);
        store.checkpoint_as(&[], Some(&as_version(&format!("v{number}"), 5))).unwrap();
        // As the cleaning thread does, if anything is left to clean.
        while store.turn(Work::Write).unwrap() || store.turn(Work::Clean).unwrap() {}
        let between: u64 = differ.iter().rev().take(4.min(number)).sum();
        ratios.push(allocated(folder.path()) as f64 / ((ROWS + between) * 512) as f64);
    }
    ratios
}

#[test]
fn five_versions_take_half_more_than_their_rows() {
    for share in [0.02, 0.1, 0.4] {
        let ratios = device_bytes_over_needed(share);
        println!("{share}: {ratios:.2?}");
        assert!(ratios[4..].iter().all(|&ratio| ratio <= 1.5), "a share of {share} changes: {ratios:.2?}");
    }
}
