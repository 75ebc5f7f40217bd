//! The clocks of rows.
//!
//! What could break: a get that runs ahead of its bound trains on rows that are too old; a clock that one
//! step takes twice or never releases blocks the next step forever; two steps that wait for each other's rows
//! block both. The first tests count gets against the bound. The later ones run access patterns of training
//! that deadlock when one of these rules is wrong. A deadline turns a deadlock into an error, and the trained
//! rows are checked exactly.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::*;
use rowmill_store::*;
use rowmill_testkit::{Fault, FaultyVolume, Rng64, When, ZipfIds};

fn store(deadline: Duration) -> Arc<Store> {
    let options = StoreOptions { wait_deadline: deadline, ..options(None) };
    open(&MemoryVolume::new(), &options)
}

/// Short, because the tests wait for it.
const SOON: Duration = Duration::from_millis(150);
/// Never reached unless there is a deadlock.
const LATE: Duration = Duration::from_secs(20);

fn get(table: &Table, ids: &[u64], ticket: &Ticket) -> Result<Vec<f32>, StoreError> {
    let mut rows = vec![0.0; ids.len() * table.spec().dim as usize];
    table.get_or_init(ids, &mut rows, Some(ticket)).map(|()| rows)
}

/// Adds 1 to every weight of the rows, at a learning rate of 0.5.
fn add_one(table: &Table, ids: &[u64], ticket: Option<&Ticket>) -> Result<(), StoreError> {
    table.rmw(ids, &vec![-2.0; ids.len() * table.spec().dim as usize], None, ticket)
}

/// Fails when a get of one of the rows is still outstanding.
fn assert_clocks_are_zero(store: &Arc<Store>, table: &Table, ids: &[u64]) {
    let before = store.stats().staleness[0];
    get(table, ids, &store.ticket().unwrap()).unwrap();
    assert_eq!(store.stats().staleness[0], before + ids.len() as u64);
}

fn zeros(spec: TableSpec) -> TableSpec {
    TableSpec { initializer: Initializer::Zeros, ..spec }
}

#[test]
fn a_get_proceeds_while_outstanding_gets_are_within_the_bound() {
    for steps in [0_u8, 1, 3] {
        let store = store(SOON);
        let table = store.table("t", &bound(steps)).unwrap();
        let mut tickets: Vec<Ticket> = (0..=steps).map(|_| store.ticket().unwrap()).collect();
        for ticket in &tickets {
            get(&table, &[5], ticket).unwrap();
        }
        let late = store.ticket().unwrap();
        match get(&table, &[5], &late).unwrap_err() {
            StoreError::StalenessTimeout { outstanding, bound, .. } => {
                assert_eq!((outstanding, bound), (u32::from(steps) + 1, steps));
            }
            error => panic!("{error}"),
        }
        assert_eq!(late.rows_held(), 0);
        get(&table, &[6], &late).unwrap();
        tickets.pop();
        get(&table, &[5], &late).unwrap();
        let counts = store.stats().staleness;
        assert_eq!(counts[..=usize::from(steps)].iter().sum::<u64>(), u64::from(steps) + 3);
        assert_eq!(counts[usize::from(steps) + 1..].iter().sum::<u64>(), 0, "no get ran ahead of its bound");
    }
}

#[test]
fn without_a_bound_no_clock_is_kept() {
    let store = store(SOON);
    let table = store.table("t", &TableSpec { staleness: StalenessBound::Infinite, ..bound(0) }).unwrap();
    let tickets: Vec<Ticket> = (0..40).map(|_| store.ticket().unwrap()).collect();
    for ticket in &tickets {
        get(&table, &[5], ticket).unwrap();
        assert_eq!(ticket.rows_held(), 0);
    }
    assert_eq!(store.stats().staleness.iter().sum::<u64>(), 0);
}

#[test]
fn a_step_takes_the_clock_of_a_row_once_for_all_reads() {
    let store = store(SOON);
    let (a, b) = (store.table("a", &bound(0)).unwrap(), store.table("b", &bound(0)).unwrap());
    for _ in 0..3 {
        let ticket = store.ticket().unwrap();
        get(&a, &[1, 2, 1, 1], &ticket).unwrap();
        get(&a, &[2, 3], &ticket).unwrap();
        let bag = |ids, offsets| IdBag { ids, offsets, weights: None, padding: None, pooling: Pooling::Sum };
        let bags = [(&a, bag(&[1, 4, 4], &[0, 3])), (&b, bag(&[1], &[0, 1])), (&a, bag(&[4, 2], &[0, 2]))];
        let mut out = [0.0; 12];
        let lookup = store.lookup(&bags, &mut out, 12, Some(&ticket)).unwrap();
        assert_eq!(ticket.rows_held(), 5);
        store.apply(&lookup, &[1.0; 12], 12, &[0.5; 3], Some(&ticket)).unwrap();
        assert_eq!(ticket.rows_held(), 1, "row 3 was read and not updated");
        add_one(&a, &[3, 3], Some(&ticket)).unwrap();
        assert_eq!(ticket.rows_held(), 0);
    }
    assert_eq!(store.stats().staleness[0], 15);
    assert_eq!(store.stats().staleness[1..].iter().sum::<u64>(), 0);
}

#[test]
fn more_gets_than_fit_into_four_bits_are_counted() {
    let store = store(SOON);
    let table = store.table("t", &bound(40)).unwrap();
    for _ in 0..2 {
        let tickets: Vec<Ticket> = (0..41).map(|_| store.ticket().unwrap()).collect();
        for ticket in &tickets {
            get(&table, &[5, 6], ticket).unwrap();
        }
        let late = store.ticket().unwrap();
        let error = get(&table, &[5], &late).unwrap_err();
        assert!(matches!(error, StoreError::StalenessTimeout { outstanding: 41, .. }), "{error}");
        // Half of the clocks are released by an update, half by dropping the ticket.
        for (number, ticket) in tickets.into_iter().enumerate() {
            if number % 2 == 0 {
                add_one(&table, &[5, 6], Some(&ticket)).unwrap();
            }
            drop(ticket);
            get(&table, &[5], &late).unwrap();
        }
    }
    table.delete(&[5]).unwrap();
    get(&table, &[5], &store.ticket().unwrap()).unwrap();
}

/// Regression: a step whose row was deleted released the clock of the new row with that id, which another
/// step held.
#[test]
fn a_step_releases_only_the_clock_of_the_row_it_read() {
    let ends: [fn(&Table, Ticket); 3] = [
        |table, ticket| table.put(&[7], &[1.0; 4], Some(&ticket)).unwrap(),
        |table, ticket| add_one(table, &[7], Some(&ticket)).unwrap(),
        |_, ticket| drop(ticket),
    ];
    // Twenty gets exceed the four bits of an entry.
    for (steps, end) in [0_u8, 1, 20].into_iter().flat_map(|steps| ends.map(|end| (steps, end))) {
        let store = store(SOON);
        let table = store.table("t", &bound(steps)).unwrap();
        let begin = || {
            let ticket = store.ticket().unwrap();
            get(&table, &[7], &ticket).map(|_| ticket)
        };
        // As many steps as the bound allows, three times, each time on a new row.
        let mut tickets = Vec::new();
        for _ in 0..3 {
            table.delete(&[7]).unwrap();
            tickets.extend((0..=steps).map(|_| begin().unwrap()));
        }
        let last = tickets.split_off(2 * (usize::from(steps) + 1));
        for ticket in tickets {
            end(&table, ticket);
        }
        match begin().unwrap_err() {
            StoreError::StalenessTimeout { outstanding, .. } => assert_eq!(outstanding, u32::from(steps) + 1),
            error => panic!("{error}"),
        }
        for ticket in last {
            end(&table, ticket);
        }
        assert_clocks_are_zero(&store, &table, &[7]);
    }
}

#[test]
fn a_step_holds_no_clocks_of_deleted_rows() {
    let store = store(SOON);
    let table = store.table("t", &bound(0)).unwrap();
    let bag = IdBag { ids: &[7, 8], offsets: &[0, 2], weights: None, padding: None, pooling: Pooling::Sum };
    for reborn in [false, true] {
        let first = store.ticket().unwrap();
        let lookup = store.lookup(&[(&table, bag)], &mut [0.0; 4], 4, Some(&first)).unwrap();
        table.delete(&[7]).unwrap();
        if reborn {
            table.put(&[7], &[1.0; 4], None).unwrap();
        }
        store.apply(&lookup, &[1.0; 4], 4, &[0.5], Some(&first)).unwrap();
        assert_eq!(first.rows_held(), 0);
        assert_clocks_are_zero(&store, &table, &[7, 8]);
    }
}

/// The step holds the clock of the deleted row. It takes the clock of the new row like any other step.
#[test]
fn a_step_that_reads_a_recreated_row_takes_its_clock() {
    let store = store(SOON);
    let table = store.table("t", &bound(0)).unwrap();
    let [first, second, third] = [(); 3].map(|()| store.ticket().unwrap());
    get(&table, &[6, 7], &first).unwrap();
    table.delete(&[7]).unwrap();
    get(&table, &[7], &second).unwrap();
    for ticket in [&first, &third] {
        let error = get(&table, &[7], ticket).unwrap_err();
        assert!(matches!(error, StoreError::StalenessTimeout { outstanding: 1, .. }), "{error}");
    }
    drop(second);
    for _ in 0..2 {
        get(&table, &[7], &first).unwrap();
        assert_eq!(first.rows_held(), 2);
    }
    let error = get(&table, &[7], &third).unwrap_err();
    assert!(matches!(error, StoreError::StalenessTimeout { outstanding: 1, .. }), "{error}");
    add_one(&table, &[7], Some(&first)).unwrap();
    assert_eq!(first.rows_held(), 1);
    assert_clocks_are_zero(&store, &table, &[7]);
}

#[test]
fn the_error_of_a_long_wait_names_row_and_step() {
    let store = store(SOON);
    store.table("first", &bound(0)).unwrap();
    let table = store.table("clicks", &bound(0)).unwrap();
    let holder = store.ticket().unwrap();
    get(&table, &[42], &holder).unwrap();
    let waiter = store.ticket().unwrap();
    let message = get(&table, &[41, 42], &waiter).unwrap_err().to_string();
    for part in
        ["category 1 id 42", "\"clicks\"", "bound 0", "1 outstanding", &format!("step {} for", holder.id())]
    {
        assert!(message.contains(part), "{part:?} is missing: {message}");
    }
    assert_eq!(waiter.rows_held(), 0, "clocks taken before the wait are released");
    get(&table, &[41], &store.ticket().unwrap()).unwrap();
    assert!(store.stats().clock_waits > 0);
}

/// Regression: each attempt to take all rows took the clocks of some, released them, and so woke the same
/// step again.
#[test]
fn a_waiting_step_sleeps_and_is_counted_once() {
    let store = store(SOON);
    let table = store.table("t", &bound(0)).unwrap();
    let holder = store.ticket().unwrap();
    get(&table, &[9], &holder).unwrap();
    let waiter = store.ticket().unwrap();
    get(&table, &(0..10).collect::<Vec<_>>(), &waiter).unwrap_err();
    assert_eq!(store.stats().staleness.iter().sum::<u64>(), 1);
    drop(holder);
    get(&table, &(0..10).collect::<Vec<_>>(), &waiter).unwrap();
    assert_eq!(store.stats().staleness.iter().sum::<u64>(), 11);
}

#[test]
fn evaluation_neither_takes_clocks_nor_waits_for_them() {
    let store = store(LATE);
    let table = store.table("t", &bound(0)).unwrap();
    let ticket = store.ticket().unwrap();
    get(&table, &[1, 2], &ticket).unwrap();
    let before = store.stats();
    let mut rows = [0.0; 8];
    table.get(&[1, 2], &mut rows).unwrap();
    let bag = IdBag { ids: &[1, 2], offsets: &[0, 2], weights: None, padding: None, pooling: Pooling::Sum };
    store.lookup(&[(&table, bag)], &mut rows[..4], 4, None).unwrap();
    table.get_or_init(&[1, 2], &mut rows, None).unwrap();
    let after = store.stats();
    assert_eq!((before.staleness, before.clock_waits), (after.staleness, after.clock_waits));
    assert_eq!(ticket.rows_held(), 2);
}

#[test]
fn a_failed_step_releases_its_clocks() {
    let volume = FaultyVolume::new(Arc::new(MemoryVolume::new()), 1);
    let options = StoreOptions { wait_deadline: SOON, ..options(Some(96 << 10)) };
    let store = open(&volume, &options);
    let table = store.table("t", &spec(16, SGD)).unwrap();
    let ids: Vec<u64> = (0..4000).collect();
    table.put(&ids, &vec![1.0; 4000 * 16], None).unwrap();
    let all_free = || {
        let ticket = store.ticket().unwrap();
        for ids in ids.chunks(100) {
            get(&table, ids, &ticket).unwrap();
        }
    };
    // Gradients that are not finite change nothing, and the step holds its rows until it ends.
    let ticket = store.ticket().unwrap();
    get(&table, &[1, 2], &ticket).unwrap();
    assert!(matches!(
        table.rmw(&[1, 2], &[f32::NAN; 32], None, Some(&ticket)),
        Err(StoreError::NotFinite { .. })
    ));
    assert_eq!(ticket.rows_held(), 2);
    drop(ticket);
    all_free();
    // A failing read, once in the get and once in the update.
    for update in [false, true] {
        let ticket = store.ticket().unwrap();
        if update {
            get(&table, &ids[..500], &ticket).unwrap();
            // Push the rows out of memory again; reads may evict held rows.
            table.get(&ids[500..], &mut vec![0.0; 3500 * 16]).unwrap();
        } else {
            table.get(&ids[2000..], &mut vec![0.0; 2000 * 16]).unwrap();
        }
        volume.inject_on("group-0.log", Fault::ReadError, When::OneIn(3));
        let result = if update {
            add_one(&table, &ids, Some(&ticket))
        } else {
            get(&table, &ids[..500], &ticket).map(drop)
        };
        volume.heal();
        result.unwrap_err();
        drop(ticket);
        all_free();
    }
}

/// Bound 0 is bulk-synchronous for every shape of the pipeline. Each update must see all earlier ones, so a
/// row updated n times must equal exactly n updates of its first value.
#[test]
fn three_pipeline_stages_at_bound_zero_train_like_one() {
    const STEPS: usize = 300;
    let store = store(LATE);
    let table = store.table("t", &bound(0)).unwrap();
    let mut model = Model::new(bound(0), 0);
    let mut zipf = ZipfIds::new(200, 1.0, 3);
    let batches: Vec<Vec<u64>> = (0..STEPS)
        .map(|_| {
            let mut ids: Vec<u64> = (0..20).map(|_| zipf.next().unwrap()).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        })
        .collect();
    let gradient = |weight: f32| weight * 0.25 + 0.125;
    std::thread::scope(|scope| {
        let (fetched, to_compute) = sync_channel::<(Ticket, Vec<u64>, Vec<f32>)>(2);
        let (computed, to_put) = sync_channel::<(Ticket, Vec<u64>, Vec<f32>)>(2);
        let (store, table, batches) = (&store, &table, &batches);
        scope.spawn(move || {
            for ids in batches {
                let ticket = store.ticket().unwrap();
                let rows = get(table, ids, &ticket).unwrap();
                fetched.send((ticket, ids.clone(), rows)).unwrap();
            }
        });
        scope.spawn(move || {
            for (ticket, ids, rows) in to_compute {
                computed.send((ticket, ids, rows.into_iter().map(gradient).collect())).unwrap();
            }
        });
        for (ticket, ids, gradients) in to_put {
            table.rmw(&ids, &gradients, None, Some(&ticket)).unwrap();
        }
    });
    for ids in &batches {
        let gradients: Vec<f32> = ids.iter().flat_map(|&id| model.read(id).weights).map(gradient).collect();
        model.rmw(ids, &gradients, 0.5);
    }
    // The multiplication by the rate is exact, but the gradient itself is rounded once.
    model.check(&table);
    assert!(store.stats().clock_waits > 0, "the stages never met");
}

#[test]
fn several_lookups_and_then_their_updates_are_one_step() {
    let store = store(LATE);
    let spec = zeros(bound(0));
    let table = store.table("t", &spec).unwrap();
    let bag = |ids| IdBag { ids, offsets: &[0, 3], weights: None, padding: None, pooling: Pooling::Sum };
    let parts: [[u64; 3]; 3] = [[1, 2, 3], [3, 4, 1], [5, 1, 9]];
    for _ in 0..3 {
        let ticket = store.ticket().unwrap();
        let mut out = [0.0; 4];
        let lookups: Vec<Lookup> = parts
            .iter()
            .map(|ids| store.lookup(&[(&table, bag(ids))], &mut out, 4, Some(&ticket)).unwrap())
            .collect();
        for lookup in &lookups {
            store.apply(lookup, &[-2.0; 4], 4, &[0.5], Some(&ticket)).unwrap();
        }
        assert_eq!(ticket.rows_held(), 0);
    }
    let mut rows = [0.0; 8];
    table.get(&[1, 9], &mut rows).unwrap();
    assert_eq!(rows, [9.0, 9.0, 9.0, 9.0, 3.0, 3.0, 3.0, 3.0]);
}

#[test]
fn a_call_over_all_threads_updates_each_row_once_and_releases_every_clock() {
    const IDS: u64 = 10_000;
    let store = store(SOON);
    let table = store.table("t", &zeros(bound(0))).unwrap();
    // Every id but the first hundred occurs twice, far apart.
    let ids: Vec<u64> = (0..IDS).chain(100..IDS).collect();
    for _ in 0..3 {
        let ticket = store.ticket().unwrap();
        get(&table, &ids, &ticket).unwrap();
        assert_eq!(ticket.rows_held(), IDS as usize);
        add_one(&table, &ids, Some(&ticket)).unwrap();
        assert_eq!(ticket.rows_held(), 0);
    }
    let rows = get(&table, &ids[..IDS as usize], &store.ticket().unwrap()).unwrap();
    for (id, row) in rows.chunks(4).enumerate() {
        assert_eq!(row, [if id < 100 { 3.0 } else { 6.0 }; 4], "row {id}");
    }
    let ticket = store.ticket().unwrap();
    get(&table, &ids, &ticket).unwrap();
    let values: Vec<f32> = ids.iter().flat_map(|&id| [id as f32; 4]).collect();
    table.put(&ids, &values, Some(&ticket)).unwrap();
    assert_eq!(ticket.rows_held(), 0);
    assert_eq!(get(&table, &ids, &store.ticket().unwrap()).unwrap(), values);
}

#[test]
fn steps_of_one_call_never_deadlock() {
    const ROUNDS: u64 = 300;
    let store = store(LATE);
    let tables = ["a", "b"].map(|name| store.table(name, &zeros(bound(0))).unwrap());
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (store, tables) = (&store, &tables);
            scope.spawn(move || {
                let mut rng = Rng64::new(worker);
                for _ in 0..ROUNDS {
                    let mut ids: Vec<u64> = (0..32).collect();
                    ids.sort_by_cached_key(|_| rng.next_u64());
                    let offsets = [0, 32];
                    let bag = IdBag {
                        ids: &ids,
                        offsets: &offsets,
                        weights: None,
                        padding: None,
                        pooling: Pooling::Sum,
                    };
                    let first = usize::from(rng.one_in(2));
                    let bags = [(&tables[first], bag), (&tables[1 - first], bag)];
                    let ticket = store.ticket().unwrap();
                    let lookup = store.lookup(&bags, &mut [0.0; 8], 8, Some(&ticket)).unwrap();
                    store.apply(&lookup, &[-2.0; 8], 8, &[0.5; 2], Some(&ticket)).unwrap();
                }
            });
        }
    });
    let mut rows = [0.0; 128];
    for table in &tables {
        table.get(&(0..32).collect::<Vec<_>>(), &mut rows).unwrap();
        assert!(rows.iter().all(|&weight| weight == 3.0 * ROUNDS as f32), "an update was lost: {rows:?}");
    }
}

#[test]
fn of_two_steps_in_a_deadlock_the_younger_gives_way() {
    let store = store(LATE);
    let table = store.table("t", &zeros(bound(0))).unwrap();
    let barrier = Barrier::new(2);
    let (old, young) = (store.ticket().unwrap(), store.ticket().unwrap());
    std::thread::scope(|scope| {
        let (store, table, barrier) = (&store, &table, &barrier);
        scope.spawn(move || {
            get(table, &[1], &old).unwrap();
            barrier.wait();
            get(table, &[2], &old).unwrap();
            add_one(table, &[1, 2], Some(&old)).unwrap();
        });
        scope.spawn(move || {
            get(table, &[2], &young).unwrap();
            barrier.wait();
            match get(table, &[1], &young).unwrap_err() {
                StoreError::StepConflict { ticket, key } => assert_eq!((ticket, key.id), (young.id(), 1)),
                error => panic!("{error}"),
            }
            drop(young);
            let again = store.ticket().unwrap();
            get(table, &[2], &again).unwrap();
            get(table, &[1], &again).unwrap();
            add_one(table, &[1, 2], Some(&again)).unwrap();
        });
    });
    let mut rows = [0.0; 8];
    table.get(&[1, 2], &mut rows).unwrap();
    assert_eq!(rows, [2.0; 8]);
}

/// Many workers with several calls per step. A step starts over when it has to give way.
#[test]
fn steps_of_several_calls_finish_by_retrying() {
    const ROUNDS: u64 = 60;
    let store = store(LATE);
    let table = store.table("t", &zeros(bound(0))).unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (store, table) = (&store, &table);
            scope.spawn(move || {
                let mut rng = Rng64::new(worker);
                for _ in 0..ROUNDS {
                    let order = if rng.one_in(2) { [0_u64, 1, 2] } else { [2, 1, 0] };
                    loop {
                        let ticket = store.ticket().unwrap();
                        match order.iter().try_for_each(|&id| get(table, &[id], &ticket).map(drop)) {
                            Ok(()) => break add_one(table, &order, Some(&ticket)).unwrap(),
                            Err(StoreError::StepConflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    let mut rows = [0.0; 12];
    table.get(&[0, 1, 2], &mut rows).unwrap();
    assert_eq!(rows, [4.0 * ROUNDS as f32; 12]);
    assert_eq!(store.stats().tickets, 0);
}
