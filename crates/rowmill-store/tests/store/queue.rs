//! Queued gets.
//!
//! What could break: a worker that reads ahead while it owes a put blocks itself; a queued get never
//! proceeds, proceeds too early, or keeps clocks that are never released.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::*;
use rowmill_store::*;
use rowmill_testkit::{Rng64, ZipfIds};

fn store(deadline: Duration) -> Arc<Store> {
    let options = StoreOptions { wait_deadline: deadline, ..options(None) };
    open(&MemoryVolume::new(), &options)
}

/// Never reached unless there is a deadlock.
const LATE: Duration = Duration::from_secs(20);

fn ticket(store: &Arc<Store>) -> Arc<Ticket> {
    Arc::new(store.ticket().unwrap())
}

fn zeros(steps: u8) -> TableSpec {
    TableSpec { initializer: Initializer::Zeros, ..bound(steps) }
}

/// Adds 1 to every weight of the rows, at a learning rate of 0.5.
fn add_one(table: &Table, ids: &[u64], ticket: &Ticket) {
    table.rmw(ids, &vec![-2.0; ids.len() * 4], None, Some(ticket)).unwrap();
}

/// One thread always has the next two gets queued while it owes a put. Each update must still see all earlier
/// ones.
#[test]
fn a_worker_may_queue_gets_before_its_put() {
    const STEPS: usize = 300;
    let store = store(LATE);
    let table = store.table("t", &bound(0)).unwrap();
    let mut model = Model::new(bound(0), 0);
    let mut zipf = ZipfIds::new(50, 1.0, 3);
    let batches: Vec<Vec<u64>> = (0..STEPS)
        .map(|_| {
            let mut ids: Vec<u64> = (0..10).map(|_| zipf.next().unwrap()).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        })
        .collect();
    let gradient = |weight: f32| weight * 0.25 + 0.125;
    let mut ahead = std::collections::VecDeque::new();
    for step in 0..STEPS + 2 {
        if let Some(ids) = batches.get(step) {
            let ticket = ticket(&store);
            ahead.push_back((table.get_later(ids, &ticket).unwrap(), ticket, ids));
        }
        if step >= 2 {
            let (later, ticket, ids) = ahead.pop_front().unwrap();
            let gradients: Vec<f32> = later.wait().unwrap().into_iter().map(gradient).collect();
            table.rmw(ids, &gradients, None, Some(&ticket)).unwrap();
        }
    }
    for ids in &batches {
        let gradients: Vec<f32> = ids.iter().flat_map(|&id| model.read(id).weights).map(gradient).collect();
        model.rmw(ids, &gradients, 0.5);
    }
    model.check(&table);
    assert_eq!(store.stats().tickets, 0);
}

/// Regression: a get behind another one in the queue blocked a younger step, which held a row that the front
/// get needed. All three waited until the deadline.
#[test]
fn a_queued_get_does_not_block_younger_steps() {
    const PAUSE: Duration = Duration::from_millis(4);
    // The case needs two shards: of every eight rows, one is in the first shard and two are in the second.
    let store = open(&MemoryVolume::new(), &StoreOptions { wait_deadline: LATE, ..options(Some(80 << 10)) });
    let table = store.table("t", &spec(16, SGD)).unwrap();
    for trial in 0..50 {
        let [first, second, other] = [3 * trial, 3 * trial + 1, 3 * trial + 2];
        let [oldest, older, younger, holder] = [(); 4].map(|()| ticket(&store));
        table.get_or_init(&[second], &mut [0.0; 16], Some(&holder)).unwrap();
        let behind = table.get_later(&[second], &older).unwrap();
        std::thread::scope(|scope| {
            let table = &table;
            scope.spawn(move || {
                table.get_or_init(&[first, other], &mut [0.0; 32], Some(&younger)).unwrap();
            });
            std::thread::sleep(PAUSE);
            let front = table.get_later(&[first, second], &oldest).unwrap();
            std::thread::sleep(PAUSE);
            drop(holder);
            for (later, ticket) in [(front, oldest), (behind, older)] {
                scope.spawn(move || {
                    later.wait().unwrap();
                    drop(ticket);
                });
            }
        });
    }
}

#[test]
fn a_queued_get_is_ready_after_the_put_and_releases_its_clock() {
    let store = store(LATE);
    let table = store.table("t", &zeros(0)).unwrap();
    let (first, second) = (ticket(&store), ticket(&store));
    table.get_or_init(&[1], &mut [0.0; 4], Some(&first)).unwrap();
    let later = table.get_later(&[2, 1, 2], &second).unwrap();
    let third = ticket(&store);
    let free = table.get_later(&[9], &third).unwrap();
    assert_eq!(free.wait().unwrap(), [0.0; 4], "gets of rows without a holder do not wait");
    assert!(!later.is_ready());
    assert_eq!(second.rows_held(), 0, "a get that waits holds nothing");
    add_one(&table, &[1], &first);
    assert_eq!(later.wait().unwrap(), [[0.0; 4], [1.0; 4], [0.0; 4]].concat());
    assert_eq!(second.rows_held(), 2);
    drop(second);
    table.get_or_init(&[1, 2], &mut [0.0; 8], Some(&ticket(&store))).unwrap();
}

#[test]
fn gets_of_one_step_are_served_in_their_order_and_take_a_clock_once() {
    let store = store(LATE);
    let table = store.table("t", &zeros(0)).unwrap();
    let (owes, reads) = (ticket(&store), ticket(&store));
    table.get_or_init(&[1], &mut [0.0; 4], Some(&owes)).unwrap();
    let gets = [&[1_u64][..], &[1, 2], &[2]].map(|ids| table.get_later(ids, &reads).unwrap());
    std::thread::sleep(Duration::from_millis(30));
    assert!(gets.iter().all(|get| !get.is_ready()), "the second one waits for the first");
    drop(owes);
    for get in gets {
        get.wait().unwrap();
    }
    assert_eq!(reads.rows_held(), 2);
}

/// Regression: each thread found that the step held no row, so every clock was taken twice and released once.
#[test]
fn threads_of_one_step_with_the_same_rows_take_each_clock_once() {
    const ROUNDS: u64 = 40;
    let ids: Vec<u64> = (0..40).collect();
    for steps in [0, 2] {
        // Several shards.
        let store =
            open(&MemoryVolume::new(), &StoreOptions { wait_deadline: LATE, ..options(Some(1 << 20)) });
        let table = store.table("t", &zeros(steps)).unwrap();
        for round in 0..ROUNDS {
            let holders: Vec<Arc<Ticket>> = (0..=steps).map(|_| ticket(&store)).collect();
            for holder in &holders {
                table.get_or_init(&[20], &mut [0.0; 4], Some(holder)).unwrap();
            }
            let step = ticket(&store);
            let barrier = Barrier::new(4);
            std::thread::scope(|scope| {
                let (store, table, step, barrier, ids) = (&store, &table, &step, &barrier, &ids);
                scope.spawn(move || {
                    barrier.wait();
                    table.get_later(&ids[..30], step).unwrap().wait().unwrap();
                });
                scope.spawn(move || {
                    barrier.wait();
                    table.get_or_init(&ids[10..], &mut [0.0; 120], Some(step)).unwrap();
                });
                scope.spawn(move || {
                    barrier.wait();
                    let bag =
                        IdBag { ids, offsets: &[0, 40], weights: None, padding: None, pooling: Pooling::Sum };
                    store.lookup(&[(table, bag)], &mut [0.0; 4], 4, Some(step)).unwrap();
                });
                // By then most calls wait, having seen that the step holds no row.
                barrier.wait();
                std::thread::sleep(Duration::from_millis(2));
                drop(holders);
            });
            assert_eq!(step.rows_held(), ids.len());
            if round % 2 == 0 {
                add_one(&table, &ids, &step);
                assert_eq!(step.rows_held(), 0);
            }
            drop(step);
            let before = store.stats().staleness[0];
            table.get_or_init(&ids, &mut [0.0; 160], Some(&ticket(&store))).unwrap();
            assert_eq!(store.stats().staleness[0], before + ids.len() as u64, "no get is outstanding");
        }
    }
}

/// Regression: one call of a step overwrote what another call of it had taken before it waited. A circle
/// through that call was not detected, and all waited until the deadline.
#[test]
fn a_deadlock_through_one_of_two_waiting_calls_is_detected() {
    const PAUSE: Duration = Duration::from_millis(4);
    // Several shards: other calls wait for rows that a call has taken in earlier shards.
    let store = open(&MemoryVolume::new(), &StoreOptions { wait_deadline: LATE, ..options(Some(1 << 20)) });
    let table = store.table("t", &zeros(0)).unwrap();
    let mut circles = 0;
    for trial in 0..10 {
        let (wanted, owed): (Vec<u64>, u64) = ((100 * trial..100 * trial + 16).collect(), 100 * trial + 50);
        let [holder, old, young] = [(); 3].map(|()| ticket(&store));
        table.get_or_init(&[owed], &mut [0.0; 4], Some(&holder)).unwrap();
        table.get_or_init(&wanted[8..9], &mut [0.0; 4], Some(&young)).unwrap();
        std::thread::scope(|scope| {
            let (table, wanted, old) = (&table, &wanted, &old);
            scope.spawn(move || table.get_or_init(wanted, &mut [0.0; 64], Some(old)).unwrap());
            std::thread::sleep(PAUSE);
            scope.spawn(move || table.get_or_init(&[owed], &mut [0.0; 4], Some(old)).unwrap());
            std::thread::sleep(PAUSE);
            match table.get_or_init(&wanted[..8], &mut [0.0; 32], Some(&young)) {
                Ok(()) => {}
                Err(StoreError::StepConflict { ticket, .. }) => {
                    assert_eq!(ticket, young.id());
                    circles += 1;
                }
                Err(error) => panic!("{error}"),
            }
            drop((young, holder));
        });
        assert_eq!(old.rows_held(), 17);
    }
    assert!(circles > 0, "no call waited behind rows that it had taken");
}

#[test]
fn the_error_of_a_long_wait_names_row_and_holder() {
    let store = store(Duration::from_millis(100));
    let table = store.table("t", &zeros(0)).unwrap();
    let holder = ticket(&store);
    table.get_or_init(&[7], &mut [0.0; 4], Some(&holder)).unwrap();
    let late = ticket(&store);
    match table.get_later(&[7], &late).unwrap().wait().unwrap_err() {
        StoreError::StalenessTimeout { key, holders, .. } => {
            assert_eq!(key.id, 7);
            assert!(holders.contains(&format!("step {} ", holder.id())), "{holders}");
        }
        error => panic!("{error}"),
    }
}

#[test]
fn of_two_queued_steps_in_a_deadlock_the_younger_gives_way() {
    let store = store(LATE);
    let table = store.table("t", &zeros(0)).unwrap();
    let (old, young) = (ticket(&store), ticket(&store));
    table.get_or_init(&[1], &mut [0.0; 4], Some(&old)).unwrap();
    table.get_or_init(&[2], &mut [0.0; 4], Some(&young)).unwrap();
    let of_old = table.get_later(&[2], &old).unwrap();
    let of_young = table.get_later(&[1], &young).unwrap();
    assert!(matches!(of_young.wait(), Err(StoreError::StepConflict { ticket, .. }) if ticket == young.id()));
    drop(young);
    of_old.wait().unwrap();
}

#[test]
fn an_abandoned_get_releases_everything() {
    let store = store(LATE);
    let table = store.table("t", &zeros(0)).unwrap();
    let holder = ticket(&store);
    table.get_or_init(&[1], &mut [0.0; 4], Some(&holder)).unwrap();
    let (given_up, over) = (ticket(&store), ticket(&store));
    drop(table.get_later(&[1], &given_up).unwrap());
    let orphan = table.get_later(&[1], &over).unwrap();
    let number = over.id();
    drop(over);
    drop(holder);
    assert!(matches!(orphan.wait(), Err(StoreError::StepOver { ticket }) if ticket == number));
    assert_eq!(given_up.rows_held(), 0);
    table.get_or_init(&[1], &mut [0.0; 4], Some(&ticket(&store))).unwrap();
}

#[test]
fn closing_the_store_ends_queued_gets() {
    let store = store(LATE);
    let table = store.table("t", &zeros(0)).unwrap();
    let holder = ticket(&store);
    table.get_or_init(&[1], &mut [0.0; 4], Some(&holder)).unwrap();
    let waits = ticket(&store);
    let later = table.get_later(&[1], &waits).unwrap();
    store.close();
    assert!(matches!(later.wait(), Err(StoreError::Closed)));
    assert!(matches!(table.get_later(&[1], &holder), Err(StoreError::Closed)));
}

/// Workers that read ahead over overlapping rows: each put is owed while the next get is queued.
#[test]
fn workers_with_queued_gets_finish() {
    const ROUNDS: u64 = 200;
    let store = store(LATE);
    let table = store.table("t", &zeros(0)).unwrap();
    let done: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let (store, table) = (&store, &table);
                scope.spawn(move || {
                    let mut rng = Rng64::new(worker);
                    let mut next = || {
                        let ids = if rng.one_in(2) { [0_u64, 1, 2] } else { [2, 3, 0] };
                        let ticket = ticket(store);
                        (table.get_later(&ids, &ticket).unwrap(), ticket, ids)
                    };
                    let mut now = next();
                    for _ in 0..ROUNDS {
                        // The next get is queued while the put of this one is owed.
                        let (later, ticket, ids) = std::mem::replace(&mut now, next());
                        later.wait().unwrap();
                        add_one(table, &ids, &ticket);
                    }
                    ROUNDS
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let mut rows = [0.0; 4];
    table.get(&[0], &mut rows).unwrap();
    assert_eq!(rows, [done as f32; 4]);
}
