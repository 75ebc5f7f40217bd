//! Evicted rows in copies of a store.
//!
//! What could break: a row that was evicted, in memory or on the device, is missing in the changes or the
//! feed, so that copies keep it forever; a row that was evicted and created again is listed as deleted; a
//! copy has other stamps, event time or due evictions, and later evicts other rows than the store; a restart
//! loses the counters of a table. Copies made from changes and from the feed are compared with the store, at
//! once and after both have continued.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::common::follower::Follower;
use crate::common::*;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const DIM: usize = 8;
const UNIVERSE: u64 = 3000;
const RULES: [(EvictionRule, u64); 7] = [
    (EvictionRule::TtlSteps { steps: 12 }, 0),
    (EvictionRule::TtlSteps { steps: 12 }, 7),
    (EvictionRule::TtlSeconds { seconds: 30 }, 0),
    (EvictionRule::LeastFrequent { max_rows: 1500 }, 0),
    (EvictionRule::LowestScore { max_rows: 1500 }, 0),
    (EvictionRule::LowestNorm { max_rows: 1500 }, 0),
    (EvictionRule::NormBelow { norm: 1.5 }, 0),
];

fn evicting((rule, every): (EvictionRule, u64)) -> TableSpec {
    let spec = spec(DIM as u32, ADAGRAD);
    TableSpec { eviction: Some(Eviction { rule, every }), ..if every > 0 { bf16(spec) } else { spec } }
}

/// Train with steps that depend on the seed only.
fn train(store: &Arc<Store>, table: &Table, steps: std::ops::Range<u64>) {
    for step in steps {
        let mut rng = Rng64::new(step);
        let ids: Vec<u64> = (0..200).map(|_| rng.below(UNIVERSE)).collect();
        let ticket = store.ticket_at(Some(3 * step)).unwrap();
        table.get_or_init(&ids, &mut [0.0; 200 * DIM], Some(&ticket)).unwrap();
        table.rmw(&ids, &gradients(&mut rng, 200 * DIM), Some(0.25), Some(&ticket)).unwrap();
        if matches!(table.spec().eviction.unwrap().rule, EvictionRule::LowestScore { .. }) {
            let scores: Vec<f32> = ids.iter().map(|_| rng.below(1000) as f32).collect();
            table.set_scores(&ids, &scores).unwrap();
        }
    }
}

type Rows = BTreeMap<u64, Vec<f32>>;

/// Weights and state of all rows.
fn rows(table: &Table) -> Rows {
    let has_row = table.contains(&(0..UNIVERSE).collect::<Vec<_>>()).unwrap();
    let ids: Vec<u64> = (0..UNIVERSE).filter(|&id| has_row[id as usize]).collect();
    let (mut weights, mut state) = (vec![0.0; ids.len() * DIM], vec![0.0; ids.len() * DIM]);
    table.get(&ids, &mut weights).unwrap();
    table.get_state(&ids, &mut state).unwrap();
    let both = weights.chunks(DIM).zip(state.chunks(DIM)).map(|(weights, state)| [weights, state].concat());
    ids.into_iter().zip(both).collect()
}

/// The ids that changes list as deleted.
fn deleted(changes: &Changes) -> BTreeSet<u64> {
    let mut deleted = BTreeSet::new();
    changes
        .for_each(1000, |changed| {
            deleted.extend(changed.deleted);
            true
        })
        .unwrap();
    deleted
}

#[test]
fn copies_from_changes_and_from_the_feed_evict_like_the_store() {
    for rule in RULES {
        println!("{rule:?}");
        let small = SmallStore::new(&evicting(rule), Some(FeedOptions::default()));
        let SmallStore { store, table, .. } = &small;
        train(store, table, 1..30);
        store.checkpoint(&[]).unwrap();
        let copy = open(&MemoryVolume::new(), &options(None));
        store.changes(0).unwrap().replay(&copy).unwrap();
        let copied = copy.open_table("t").unwrap();
        assert_eq!(rows(&copied), rows(table));
        let (mut follower, mut reader) = Follower::of_checkpoint(store, &small.volume());

        train(store, table, 30..40);
        let before: BTreeSet<u64> = rows(table).into_keys().collect();
        assert!(store.stats().rows_resident < before.len() as u64, "some rows are cold");
        let mut gone: BTreeSet<u64> = table.evict().unwrap().into_iter().collect();
        assert!(gone.len() > 10, "{} rows were evicted", gone.len());
        let also: Vec<u64> = before.difference(&gone).copied().step_by(9).collect();
        table.delete(&also).unwrap();
        gone.extend(also);
        // Evicted and created again: listed as written, not as deleted.
        let again = *gone.first().unwrap();
        table.put(&[again], &[0.5; DIM], None).unwrap();
        gone.remove(&again);
        store.checkpoint(&[]).unwrap();

        let changes = store.changes(1).unwrap();
        let told = deleted(&changes);
        if rule.1 == 0 {
            assert_eq!(told, gone);
        } else {
            // Automatic evictions have deleted other rows before.
            assert!(told.is_superset(&gone) && told.iter().all(|id| !table.contains(&[*id]).unwrap()[0]));
        }
        follower.read_all(&mut reader);
        assert!(follower.deletes >= gone.len() as u64, "deletes are published, not only left out");
        assert_eq!(follower.checkpoint, 2);
        let weights = rows(table).into_iter().map(|(id, row)| (("t".to_owned(), id), row[..DIM].to_vec()));
        assert_eq!(follower.rows, weights.collect());

        changes.replay(&copy).unwrap();
        assert_eq!(rows(&copied), rows(table));
        assert_eq!((copied.steps(), copy.event_time()), (table.steps(), store.event_time()));
        // Later evictions of both stores depend on stamps, steps and event time.
        for (store, table) in [(store, table), (&copy, &copied)] {
            train(store, table, 40..48);
        }
        let evicted = table.evict().unwrap();
        assert_eq!(copied.evict().unwrap(), evicted);
        assert!(!evicted.is_empty());
        assert_eq!(rows(&copied), rows(table));
    }
}

#[test]
fn counters_of_a_table_survive_a_restart() {
    for rule in RULES {
        let mut small = SmallStore::new(&evicting(rule), None);
        train(&small.store, &small.table, 1..35);
        small.table.evict().unwrap();
        small.table.delete(&(0..500).collect::<Vec<_>>()).unwrap();
        small.store.checkpoint(&[]).unwrap();
        let counted = |small: &SmallStore| {
            let TableStats { rows, steps, accesses, births, deletes, evicted, .. } =
                small.store.stats().tables[0].clone();
            [rows, steps, accesses, births, deletes, evicted]
        };
        let (before, hot) = (counted(&small), small.table.hottest(5));
        assert!(before.iter().all(|&count| count > 0), "{rule:?}: {before:?}");
        // Changes after the checkpoint are lost in a crash.
        train(&small.store, &small.table, 35..40);
        small.table.delete(&[700, 701, 702]).unwrap();
        assert_ne!(counted(&small), before);
        small.reopen();
        assert_eq!((counted(&small), small.table.hottest(5)), (before, hot), "{rule:?}");
    }
}
