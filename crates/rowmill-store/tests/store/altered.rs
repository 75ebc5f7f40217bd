//! Rules and ranges of ids that change when a store is opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::*;
use rowmill_store::*;

const ADMIT: Admission = Admission { min_count: 3, bytes: 1 << 12 };
const TTL: Eviction = Eviction { rule: EvictionRule::TtlSteps { steps: 5 }, every: 0 };

fn dense(rows: u64) -> TableSpec {
    TableSpec { ids: IdRange::Dense { rows }, ..spec(8, ADAGRAD) }
}

fn changed(spec: &TableSpec) -> StoreOptions {
    let TableSpec { ids, eviction, admission, .. } = *spec;
    let change = TableChange { ids, eviction, admission };
    let alter = BTreeMap::from([("table".into(), change), ("unknown".into(), change)]);
    StoreOptions { alter, ..options(None) }
}

fn with_rows(spec: &TableSpec, ids: &[u64]) -> MemoryVolume {
    let volume = MemoryVolume::new();
    let store = open(&volume, &options(None));
    let values: Vec<f32> = ids.iter().flat_map(|&id| [id as f32; 8]).collect();
    store.table("table", spec).unwrap().put(ids, &values, None).unwrap();
    store.checkpoint(&[]).unwrap();
    volume
}

fn check(volume: &MemoryVolume) {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    assert!(fsck(&volume, false).unwrap().is_clean());
}

fn refused(volume: &MemoryVolume, spec: &TableSpec) -> String {
    Store::open_volume(Arc::new(volume.clone()), changed(spec)).unwrap_err().to_string()
}

fn first_weight(table: &Table, id: u64) -> f32 {
    let mut out = [0.0; 8];
    table.get(&[id], &mut out).unwrap();
    out[0]
}

#[test]
fn a_longer_range_keeps_all_rows_and_takes_new_ids() {
    let ids: Vec<u64> = (0..300).collect();
    let volume = with_rows(&dense(300), &ids);
    for (rows, was_put) in [(2000, false), (2000, true), (70_000, true)] {
        let store = open(&volume, &changed(&dense(rows)));
        let table = store.table("table", &dense(rows)).unwrap();
        assert_eq!(first_weight(&table, 17), 17.0);
        assert_eq!(table.contains(&[299, 1999]).unwrap(), [true, was_put]);
        table.put(&[1999], &[5.0; 8], None).unwrap();
        store.checkpoint(&[]).unwrap();
    }
    check(&volume);
    // It lasts, and cannot be undone.
    let store = open(&volume, &options(None));
    assert_eq!(first_weight(&store.table("table", &dense(70_000)).unwrap(), 1999), 5.0);
    drop(store);
    assert!(refused(&volume, &dense(300)).contains("[0, 70000)"));
    assert!(refused(&volume, &spec(8, ADAGRAD)).contains("any id"));
}

#[test]
fn a_change_lasts_from_the_next_checkpoint_on() {
    let volume = with_rows(&dense(300), &[1]);
    drop(open(&volume, &changed(&dense(400))));
    let store = open(&volume, &options(None));
    store.table("table", &dense(300)).unwrap();
    assert!(matches!(store.table("table", &dense(400)), Err(StoreError::SpecMismatch { .. })));
}

#[test]
fn a_rule_changes_within_its_kind_of_rows() {
    let plain = spec(8, ADAGRAD);
    let stamped = TableSpec { eviction: Some(TTL), ..plain };
    let volume = with_rows(&stamped, &[1, 2]);
    let often = Eviction { rule: EvictionRule::LeastFrequent { max_rows: 1 }, every: 0 };
    let least = TableSpec { eviction: Some(often), ..plain };
    let store = open(&volume, &changed(&least));
    let table = store.table("table", &least).unwrap();
    assert_eq!(table.evict().unwrap().len(), 1);
    drop((table, store));
    assert!(refused(&volume, &plain).contains("eviction"));
    let volume = with_rows(&plain, &[1, 2]);
    assert!(refused(&volume, &stamped).contains("eviction"));
    let below = Eviction { rule: EvictionRule::NormBelow { norm: 4.0 }, every: 0 };
    let by_norm = TableSpec { eviction: Some(below), ..plain };
    let store = open(&volume, &changed(&by_norm));
    assert_eq!(store.table("table", &by_norm).unwrap().evict().unwrap(), [1]);
}

#[test]
fn an_admission_begins_ends_and_changes() {
    let plain = spec(8, ADAGRAD);
    let admitting = |admission| TableSpec { admission: Some(admission), ..plain };
    let volume = with_rows(&plain, &[1]);
    let ask = |store: &Arc<Store>, spec: &TableSpec| {
        let table = store.table("table", spec).unwrap();
        table.get_or_init(&[9], &mut [0.0; 8], None).unwrap();
        let has = table.contains(&[9]).unwrap()[0];
        store.checkpoint(&[]).unwrap();
        has
    };
    let one = admitting(ADMIT);
    assert!(!ask(&open(&volume, &changed(&one)), &one));
    // Its counts stay.
    let two = admitting(Admission { min_count: 2, ..ADMIT });
    assert!(ask(&open(&volume, &changed(&two)), &two));
    open(&volume, &options(None)).table("table", &two).unwrap().delete(&[9]).unwrap();
    // A sketch of another size counts from zero.
    let wider = admitting(Admission { min_count: 2, bytes: 1 << 13 });
    let store = open(&volume, &changed(&wider));
    store.table("table", &wider).unwrap().delete(&[9]).unwrap();
    assert!(!ask(&store, &wider));
    drop(store);
    assert!(ask(&open(&volume, &changed(&plain)), &plain));
    check(&volume);
}
