//! Checkpoints in two phases, and shares of a store for many ranks.
//!
//! What could break: a prepared checkpoint overwrites the previous one, or is missing when it is chosen; a
//! store in doubt opens without asking which checkpoint holds; a row is taken by no rank or by two; a share
//! doubles counters. The simulation (`tests/simulation`) tests that a power failure leaves both checkpoints
//! intact.

use std::sync::Arc;
use std::time::Duration;

use crate::common::follower::Follower;
use crate::common::*;
use rowmill_kernels::Owner;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const ROWS: u64 = 10_000;

fn at(number: Option<u64>) -> StoreOptions {
    StoreOptions { at: number, ..options(Some(1 << 20)) }
}

fn reopen(volume: &MemoryVolume, number: Option<u64>) -> Result<Arc<Store>, StoreError> {
    Store::open_volume(Arc::new(volume.clone()), at(number))
}

fn train(store: &Arc<Store>, rng: &mut Rng64) {
    let table = store.table("t", &spec(16, ADAGRAD)).unwrap();
    let ids: Vec<u64> = (0..ROWS).collect();
    table.rmw(&ids, &gradients(rng, ids.len() * 16), None, None).unwrap();
}

/// Weights and state of every row.
fn content(store: &Arc<Store>) -> Vec<f32> {
    let table = store.table("t", &spec(16, ADAGRAD)).unwrap();
    let ids: Vec<u64> = (0..ROWS).collect();
    let (mut weights, mut state) = (vec![0.0; ids.len() * 16], vec![0.0; ids.len() * 16]);
    table.get(&ids, &mut weights).unwrap();
    table.get_state(&ids, &mut state).unwrap();
    weights.extend(state);
    weights
}

#[test]
fn both_checkpoints_are_intact_until_one_is_chosen() {
    let mut rng = Rng64::new(1);
    for chosen in [1, 2] {
        let volume = MemoryVolume::new();
        let store = reopen(&volume, Some(0)).unwrap();
        train(&store, &mut rng);
        store.checkpoint(&[("step", b"1")]).unwrap();
        let first = content(&store);
        train(&store, &mut rng);
        assert_eq!(store.prepare(&[("step", b"2")]).unwrap().epoch, 2);
        assert_eq!((store.checkpoint_epoch(), store.attachment("step").unwrap()), (1, Some(b"1".to_vec())));
        let second = content(&store);
        // Twice as many rows as fit into memory: free places are overwritten.
        for _ in 0..2 {
            train(&store, &mut rng);
        }
        for error in [store.prepare(&[]).unwrap_err(), store.checkpoint(&[]).unwrap_err()] {
            assert!(matches!(error, StoreError::InDoubt { committed: 1, prepared: 2, .. }), "{error}");
        }
        store.close();

        let error = reopen(&volume, None).unwrap_err();
        assert!(matches!(error, StoreError::InDoubt { committed: 1, prepared: 2, .. }), "{error}");
        for wrong in [0, 3] {
            let error = reopen(&volume, Some(wrong)).unwrap_err();
            assert!(
                matches!(&error, StoreError::NotAt { there, .. } if there == "1 (and 2, prepared)"),
                "{error}"
            );
        }
        // A repair needs to know which checkpoint holds, too.
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        assert!(fsck(&shared, true).unwrap().is_clean());
        // A reader does not decide which checkpoint holds.
        for (number, expected) in [(None, &first), (Some(1), &first), (Some(2), &second)] {
            let options = StoreOptions { read_only: true, ..at(number) };
            let reader = Store::open_volume(Arc::new(volume.clone()), options).unwrap();
            assert!(content(&reader) == *expected, "{number:?}");
        }
        let store = reopen(&volume, Some(chosen)).unwrap();
        assert!(content(&store) == if chosen == 1 { first } else { second });
        assert_eq!(store.attachment("step").unwrap().unwrap(), chosen.to_string().as_bytes());
        train(&store, &mut rng);
        let third = content(&store);
        assert_eq!(store.checkpoint(&[]).unwrap().epoch, chosen + 1);
        store.close();
        let store = reopen(&volume, None).unwrap();
        assert!(content(&store) == third);
    }
}

#[test]
fn a_prepared_checkpoint_does_not_pin_later_writes() {
    // Reopened at one of the two after a crash, or committed.
    for chosen in [Some(1), Some(2), None] {
        let volume = MemoryVolume::crashable();
        let turns = Background::Turns { incarnation: 1 };
        let options = |at| StoreOptions { at, background: turns, ..options(Some(256 << 10)) };
        let store = open(&volume, &options(None));
        let mut rng = Rng64::new(6);
        let mut rounds = |store: &Arc<Store>, count| {
            for _ in 0..count {
                train(store, &mut rng);
                while store.turn(Work::Clean).unwrap() {}
            }
            let stats = store.stats();
            stats.device_used_bytes + stats.device_pinned_bytes + stats.device_free_bytes
        };
        rounds(&store, 1);
        store.checkpoint(&[]).unwrap();
        let first = content(&store);
        rounds(&store, 1);
        store.prepare(&[]).unwrap();
        let second = content(&store);
        let early = rounds(&store, 5);
        let late = rounds(&store, 30);
        assert!(late < early * 5 / 4, "{early} bytes after 5 rounds, {late} after 35");
        if chosen.is_some() {
            let crashed = volume.crash(7).volume;
            let reopened = Store::open_volume(Arc::new(crashed), options(chosen)).unwrap();
            assert!(content(&reopened) == if chosen == Some(1) { first } else { second });
            continue;
        }
        store.commit().unwrap();
        let read_only = StoreOptions { read_only: true, ..options(None) };
        let reader = Store::open_volume(Arc::new(volume.clone()), read_only).unwrap();
        assert!(content(&reader) == second);
        let mut most = 0;
        for _ in 0..10 {
            rounds(&store, 1);
            store.prepare(&[]).unwrap();
            most = most.max(rounds(&store, 2));
            store.commit().unwrap();
        }
        assert!(most < early * 5 / 4, "{early} bytes at first, {most} later");
        let last = content(&store);
        store.checkpoint(&[]).unwrap();
        store.close();
        assert!(content(&reopen(&volume, None).unwrap()) == last);
    }
}

#[test]
fn followers_reach_the_chosen_checkpoint() {
    for chosen in [1, 2] {
        let volume = MemoryVolume::new();
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let publishing = |number| StoreOptions {
            feed: Some(FeedOptions { interval: Duration::from_mins(1), ..FeedOptions::default() }),
            ..at(number)
        };
        let mut rng = Rng64::new(5);
        let store = open(&volume, &publishing(None));
        train(&store, &mut rng);
        store.checkpoint(&[]).unwrap();
        let (mut copy, mut reader) = Follower::of_checkpoint(&store, &shared);
        train(&store, &mut rng);
        store.prepare(&[]).unwrap();
        train(&store, &mut rng);
        store.publish().unwrap();
        copy.read_all(&mut reader);
        store.close();
        let store = open(&volume, &publishing(Some(chosen)));
        store.publish().unwrap();
        copy.read_all(&mut reader);
        assert!(copy.rollbacks > 0);
        let weights = content(&store);
        for id in 0..ROWS {
            let row = &weights[id as usize * 16..][..16];
            assert_eq!(copy.rows[&("t".to_owned(), id)], row, "{id} at {chosen}");
        }
    }
}

#[test]
fn a_commit_makes_the_prepared_checkpoint_the_last_one() {
    let volume = MemoryVolume::new();
    // Memory for groups that are created later.
    let store = open(&volume, &options(None));
    let mut rng = Rng64::new(2);
    train(&store, &mut rng);
    assert!(matches!(store.commit().unwrap_err(), StoreError::Option { .. }));
    for epoch in 1..20 {
        train(&store, &mut rng);
        store.prepare(&[("step", epoch.to_string().as_bytes())]).unwrap();
        let prepared = content(&store);
        train(&store, &mut rng);
        // Tables created in between belong to the next checkpoint.
        store.table(&format!("t{epoch}"), &spec(8 * (epoch % 2) as u32 + 8, SGD)).unwrap();
        assert_eq!(store.commit().unwrap().epoch, epoch);
        assert_eq!(store.checkpoint_epoch(), epoch);
        if epoch % 5 == 0 {
            store.close();
            let options = StoreOptions { read_only: true, ..at(None) };
            let reader = Store::open_volume(Arc::new(volume.clone()), options).unwrap();
            assert!(content(&reader) == prepared);
            break;
        }
    }
    let names = volume.list().unwrap();
    assert!(
        !names.iter().any(|name| name.contains("prepared") || name.starts_with("attachment-4")),
        "{names:?}"
    );
}

#[test]
fn a_repair_refuses_a_store_in_doubt() {
    let volume = MemoryVolume::new();
    let store = reopen(&volume, None).unwrap();
    train(&store, &mut Rng64::new(3));
    store.checkpoint(&[("bytes", b"whole")]).unwrap();
    store.prepare(&[]).unwrap();
    store.close();
    let mut file = volume.create("attachment-1-bytes").unwrap();
    file.write_all(b"holed").unwrap();
    file.sync().unwrap();
    drop(file);
    let shared: Arc<dyn Volume> = Arc::new(volume);
    let error = fsck(&shared, true).unwrap_err();
    assert!(matches!(error, StoreError::InDoubt { committed: 1, prepared: 2, .. }), "{error}");
}

/// Derives the number that determines owners from the name of a table.
fn category(name: &str) -> u64 {
    name.bytes().fold(7, |hash, byte| hash * 31 + u64::from(byte))
}

fn specs() -> [(&'static str, TableSpec); 4] {
    let evicting = Eviction { rule: EvictionRule::TtlSteps { steps: 5 }, every: 0 };
    let admission = Admission { min_count: 3, bytes: 1 << 10 };
    [
        ("plain", spec(4, ADAM)),
        ("narrow", bf16(spec(6, ADAGRAD))),
        ("stamped", TableSpec { eviction: Some(evicting), ..spec(4, SGD) }),
        ("counted", TableSpec { admission: Some(admission), ..spec(4, SGD) }),
    ]
}

/// Look ids up as training does, and update them.
fn step(store: &Arc<Store>, name: &str, ids: &[u64], rng: &mut Rng64) {
    let table = store.open_table(name).unwrap();
    let ticket = store.ticket().unwrap();
    let mut out = vec![0.0; ids.len() * table.spec().dim as usize];
    table.get_or_init(ids, &mut out, Some(&ticket)).unwrap();
    let values = gradients(rng, out.len());
    table.rmw(ids, &values, None, Some(&ticket)).unwrap();
}

fn make(specs: &[(&'static str, TableSpec)]) -> Arc<Store> {
    let store = open(&MemoryVolume::new(), &options(Some(512 << 10)));
    for (name, spec) in specs {
        store.table(name, spec).unwrap();
    }
    store
}

fn hashed(name: &str) -> Keeper {
    Keeper::Hash(category(name))
}

/// Copy the shares of all `parts` into the stores of `ranks` ranks.
fn spread(parts: &[Arc<Store>], ranks: u32) -> Vec<Arc<Store>> {
    spread_by(parts, ranks, &|_, name| hashed(name))
}

/// As [`spread`]; `keeper` says which ranks take the rows of a table of a part.
fn spread_by(parts: &[Arc<Store>], ranks: u32, keeper: &dyn Fn(usize, &str) -> Keeper) -> Vec<Arc<Store>> {
    (0..ranks)
        .map(|rank| {
            let target = open(&MemoryVolume::new(), &options(Some(512 << 10)));
            for (number, part) in parts.iter().enumerate() {
                let share = Share { rank, ranks, counters: number as u32 % ranks == rank };
                let keeper = |name: &str| keeper(number, name);
                part.changes(0).unwrap().replay_share(&target, share, &keeper).unwrap();
            }
            target.checkpoint(&[]).unwrap();
            target
        })
        .collect()
}

/// Of a table: lookups, births, deletes and hot ids.
type Figures = (u64, u64, u64, Vec<(u64, u64)>);

/// The figures of every table, summed over all stores.
fn figures(stores: &[Arc<Store>]) -> Vec<Figures> {
    let figures_of = |name: &str| {
        let all: Vec<TableStats> = stores
            .iter()
            .map(|store| store.stats().tables.into_iter().find(|table| table.name == name).unwrap())
            .collect();
        let sum = |field: fn(&TableStats) -> u64| all.iter().map(field).sum::<u64>();
        let mut hot: Vec<_> =
            stores.iter().flat_map(|store| store.open_table(name).unwrap().hottest(64)).collect();
        hot.sort_unstable_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        (sum(|table| table.accesses), sum(|table| table.births), sum(|table| table.deletes), hot)
    };
    specs().iter().map(|(name, _)| figures_of(name)).collect()
}

#[test]
fn tables_move_to_one_rank_and_to_every_rank() {
    let mut rng = Rng64::new(5);
    let one = make(&specs());
    for (name, _) in specs() {
        step(&one, name, &(0..300).collect::<Vec<u64>>(), &mut rng);
    }
    one.checkpoint(&[]).unwrap();
    let expected = figures(&[Arc::clone(&one)]);
    let (single, copied) = (specs()[0].0, specs()[1].0);
    let placed = |name: &str| match name {
        _ if name == single => Keeper::Rank(2),
        _ if name == copied => Keeper::Every,
        _ => hashed(name),
    };
    let three = spread_by(&[Arc::clone(&one)], 3, &|_, name| placed(name));
    for (rank, part) in three.iter().enumerate() {
        assert_eq!(part.open_table(single).unwrap().len(), if rank == 2 { 300 } else { 0 });
        assert_eq!(part.open_table(copied).unwrap().len(), 300);
        assert_eq!(figures(std::slice::from_ref(part))[1], expected[1], "every copy has the counters");
    }
    // Back by hash: only the copy of the first part counts.
    let two = spread_by(&three, 2, &|part, name| {
        if part > 0 && name == copied { Keeper::Copied } else { hashed(name) }
    });
    assert_eq!(figures(&two), expected);
    let rows: usize = two.iter().map(|part| part.open_table(copied).unwrap().len()).sum();
    assert_eq!(rows, 300);
}

#[test]
fn shares_of_any_number_of_ranks_cover_every_row_once() {
    let mut rng = Rng64::new(4);
    let whole = make(&specs());
    for round in 0..40 {
        for (name, _) in specs() {
            let ids: Vec<u64> = (0..60).map(|_| rng.below(400) + round * 20).collect();
            step(&whole, name, &ids, &mut rng);
        }
    }
    whole.open_table("plain").unwrap().delete(&[900, 901, 902]).unwrap();
    whole.checkpoint(&[]).unwrap();
    // Taken before any read, because reads count, too.
    let expected = figures(&[Arc::clone(&whole)]);
    assert!(expected.iter().all(|(accesses, births, ..)| *accesses > 0 && *births > 0));
    let mut parts = vec![Arc::clone(&whole)];
    for ranks in [4, 3, 1] {
        parts = spread(&parts, ranks);
        assert_eq!(figures(&parts), expected);
        for (name, spec) in specs() {
            let table = whole.open_table(name).unwrap();
            let owner = Owner::new(category(name), ranks);
            let (dim, ids) = (spec.dim as usize, (0..1300).collect::<Vec<u64>>());
            let exists = table.contains(&ids).unwrap();
            let mut rows = 0;
            for (rank, part) in (0..).zip(&parts) {
                let own = part.open_table(name).unwrap();
                assert_eq!(own.steps(), table.steps());
                rows += own.len();
                let mine: Vec<u64> = ids.iter().copied().filter(|&id| owner.of(id) == rank).collect();
                let expected: Vec<bool> = mine.iter().map(|&id| exists[id as usize]).collect();
                assert_eq!(own.contains(&mine).unwrap(), expected, "{name}");
                let has: Vec<u64> = mine.into_iter().filter(|&id| exists[id as usize]).collect();
                assert!(has.len() * ranks as usize * 2 > table.len(), "rank {rank} has few rows of {name}");
                for state in [false, true] {
                    let width = if state { table.state_floats() } else { dim };
                    let (mut a, mut b) = (vec![0.0; has.len() * width], vec![1.0; has.len() * width]);
                    if state {
                        table.get_state(&has, &mut a).unwrap();
                        own.get_state(&has, &mut b).unwrap();
                    } else {
                        table.get(&has, &mut a).unwrap();
                        own.get(&has, &mut b).unwrap();
                    }
                    assert_eq!(a, b, "{name}");
                }
            }
            assert_eq!(rows, table.len(), "{name}");
        }
    }
    // The next evictions depend on the stamps.
    let (one, other) = (whole.open_table("stamped").unwrap(), parts[0].open_table("stamped").unwrap());
    let evicted = one.evict().unwrap();
    assert!(!evicted.is_empty() && !one.is_empty());
    assert_eq!(other.evict().unwrap(), evicted);
    // The next admissions depend on the counts: no id is admitted later than before.
    for id in 0..1300 {
        let born = |store: &Arc<Store>| {
            let table = store.open_table("counted").unwrap();
            let mut out = [0.0; 4];
            (1..10)
                .find(|_| {
                    table.get_or_init(&[id], &mut out, Some(&store.ticket().unwrap())).unwrap();
                    table.contains(&[id]).unwrap()[0]
                })
                .unwrap()
        };
        assert!(born(&parts[0]) <= born(&whole), "{id}");
    }
}

#[test]
fn a_share_of_other_tables_is_refused() {
    let specs = specs();
    let (one, other) = (make(&specs[..2]), make(&[specs[1], specs[0]]));
    one.checkpoint(&[]).unwrap();
    let share = Share { rank: 0, ranks: 1, counters: true };
    let error = one.changes(0).unwrap().replay_share(&other, share, &hashed).unwrap_err();
    assert!(matches!(error, StoreError::SpecMismatch { field: "category", .. }), "{error}");
}
