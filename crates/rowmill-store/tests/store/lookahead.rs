//! Lookahead for steps that only read rows and take no clocks, as models over fixed features do.
//!
//! What could break: a step that takes no clocks passes without the store noticing. Rows that were loaded too
//! late or never used then stay in memory forever and keep later ones out.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::common::*;
use rowmill_store::*;

/// Rows announced for each step. Memory holds the announced rows of two steps.
const AHEAD: u64 = 400;
const STEPS: u64 = 12;

/// Reads one row of 128 weights for a step that changes nothing.
type ReadOne = fn(&Store, &Table, u64, &mut [f32; 128], &Ticket);

/// A store that looks ahead turn by turn, with memory for about 1,500 rows, and a table without clocks.
fn in_turns() -> (Arc<Store>, Table) {
    let turns = StoreOptions { background: Background::Turns { incarnation: 1 }, ..options(Some(1 << 20)) };
    let store = open(&MemoryVolume::new(), &turns);
    let table =
        store.table("t", &TableSpec { staleness: StalenessBound::Infinite, ..spec(128, SGD) }).unwrap();
    (store, table)
}

#[test]
fn rows_announced_for_a_step_of_gets_are_released_at_its_end() {
    announced_rows_leave_when_their_step_is_over(|_, table, id, row, ticket| {
        table.get_in_step(&[id], row, ticket).unwrap();
    });
}

#[test]
fn rows_announced_for_an_evaluation_step_are_released_at_its_end() {
    announced_rows_leave_when_their_step_is_over(|store, table, id, row, ticket| {
        let bag = IdBag { ids: &[id], offsets: &[0, 1], weights: None, padding: None, pooling: Pooling::Sum };
        store.evaluate(&[(table, bag)], row, 128, Some(ticket)).unwrap();
    });
}

fn announced_rows_leave_when_their_step_is_over(read_one: ReadOne) {
    let store = open(&MemoryVolume::new(), &options(Some(1 << 20)));
    let spec = TableSpec { staleness: StalenessBound::Infinite, ..spec(128, SGD) };
    let table = store.table("t", &spec).unwrap();
    put_numbered(&table, 0, (STEPS + 1) * AHEAD);
    let last = STEPS * AHEAD;
    for step in 0..STEPS {
        let before = store.stats().lookahead_loaded;
        let ids: Vec<u64> = (step * AHEAD..(step + 1) * AHEAD).collect();
        assert!(table.lookahead(&ids, Destination::Buffer { steps: 1 }).unwrap());
        while store.lookahead_pending() > 0 {
            std::thread::yield_now();
        }
        let loaded = store.stats().lookahead_loaded - before;
        assert!(loaded > AHEAD * 9 / 10, "{loaded} rows of {AHEAD} for step {step}");
        // The step reads a row that was not announced.
        let ticket = store.ticket().unwrap();
        let mut row = [0.0; 128];
        read_one(&store, &table, last, &mut row, &ticket);
        assert_eq!(row, [last as f32; 128]);
    }
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn a_row_announced_for_two_steps_stays_in_memory_after_the_first() {
    let store = open(&MemoryVolume::new(), &options(Some(1 << 20)));
    let table =
        store.table("t", &TableSpec { staleness: StalenessBound::Infinite, ..spec(128, SGD) }).unwrap();
    put_numbered(&table, 0, 20_000);
    let wanted: Vec<u64> = (0..200).collect();
    assert!(table.lookahead(&wanted, Destination::Buffer { steps: 3 }).unwrap());
    while store.lookahead_pending() > 0 {
        std::thread::yield_now();
    }
    let mut rows = vec![0.0; 200 * 128];
    let cold = |rows: &mut [f32]| {
        let before = store.stats().cold_reads;
        table.get_in_step(&wanted, rows, &store.ticket().unwrap()).unwrap();
        store.stats().cold_reads - before
    };
    assert_eq!(cold(&mut rows), 0, "announced rows are in memory");
    // The rows that a second step reads drive out all rows that no step has announced.
    let ticket = store.ticket().unwrap();
    let mut others = vec![0.0; 200 * 128];
    for from in (1000..20_000_u64).step_by(200) {
        let ids: Vec<u64> = (from..from + 200).collect();
        table.get_in_step(&ids, &mut others, &ticket).unwrap();
    }
    assert_eq!(cold(&mut rows), 0, "the third step was still to come");
    assert_eq!(rows[199 * 128], 199.0);
}

#[test]
fn rows_in_memory_are_kept_for_waiting_announcements() {
    let (store, table) = in_turns();
    put_numbered(&table, 0, 20_000);
    let wanted: Vec<u64> = (0..200).collect();
    let mut rows = vec![0.0; 200 * 128];
    let cold = |rows: &mut [f32]| {
        let before = store.stats().cold_reads;
        table.get_in_step(&wanted, rows, &store.ticket().unwrap()).unwrap();
        store.stats().cold_reads - before
    };
    assert!(cold(&mut rows) > 100, "these rows were cold and are now in memory");
    let first: Vec<u64> = (300..500).collect();
    assert!(table.lookahead(&first, Destination::Buffer { steps: 1 }).unwrap());
    assert!(table.lookahead(&wanted, Destination::Buffer { steps: 2 }).unwrap());
    for _ in 0..2 {
        assert!(store.turn(Work::LookAhead).unwrap());
    }
    assert_eq!((store.lookahead_pending(), store.stats().lookahead_loaded), (2, 0), "nothing was read yet");
    let ticket = store.ticket().unwrap();
    let mut others = vec![0.0; 200 * 128];
    for from in (1000..20_000_u64).step_by(200) {
        let ids: Vec<u64> = (from..from + 200).collect();
        table.get_in_step(&ids, &mut others, &ticket).unwrap();
    }
    assert_eq!(cold(&mut rows), 0, "their step was still to come");
    while store.turn(Work::LookAhead).unwrap() {}
    assert_eq!(store.lookahead_pending(), 0);
}

#[test]
fn announcements_wait_for_room_and_no_row_is_read_twice() {
    let (store, table) = in_turns();
    put_numbered(&table, 0, STEPS * AHEAD + 4000);
    for step in 0..STEPS {
        let ids: Vec<u64> = (step * AHEAD..(step + 1) * AHEAD).collect();
        assert!(table.lookahead(&ids, Destination::Buffer { steps: step + 1 }).unwrap());
    }
    while store.turn(Work::LookAhead).unwrap() {}
    let stats = store.stats();
    assert_eq!(store.lookahead_pending(), 0, "none of those that wait for room can go on");
    assert!((AHEAD..STEPS * AHEAD / 2).contains(&stats.lookahead_loaded), "{} rows", stats.lookahead_loaded);
    for step in 0..STEPS {
        let ids: Vec<u64> = (step * AHEAD..(step + 1) * AHEAD).collect();
        let mut rows = vec![0.0; ids.len() * 128];
        let before = store.stats().cold_reads;
        table.get_in_step(&ids, &mut rows, &store.ticket().unwrap()).unwrap();
        assert_eq!(rows[128], (step * AHEAD + 1) as f32);
        assert!(store.stats().cold_reads - before < AHEAD / 10, "the rows of step {step} were loaded");
        while store.turn(Work::LookAhead).unwrap() {}
    }
    let stats = store.stats();
    let read = stats.lookahead_loaded + stats.cold_reads;
    assert!(read <= STEPS * AHEAD, "{read} rows read of {}", STEPS * AHEAD);
    assert_eq!(stats.lookahead_late, 0);
}

#[test]
fn a_row_of_a_step_stays_for_a_later_step_with_a_waiting_announcement() {
    let (store, table) = in_turns();
    put_numbered(&table, 0, 20_000);
    let wanted: Vec<u64> = (0..200).collect();
    let mut rows = vec![0.0; 200 * 128];
    let first: Vec<u64> = (300..500).collect();
    assert!(table.lookahead(&first, Destination::Buffer { steps: 1 }).unwrap());
    assert!(table.lookahead(&wanted, Destination::Buffer { steps: 3 }).unwrap());
    for _ in 0..2 {
        assert!(store.turn(Work::LookAhead).unwrap());
    }
    // Before their announcement is processed, the first step reads these rows, and others that would drive
    // them out.
    let ticket = store.ticket().unwrap();
    table.get_in_step(&wanted, &mut rows, &ticket).unwrap();
    let mut others = vec![0.0; 200 * 128];
    for from in (1000..20_000_u64).step_by(200) {
        let ids: Vec<u64> = (from..from + 200).collect();
        table.get_in_step(&ids, &mut others, &ticket).unwrap();
    }
    store.ticket().unwrap();
    let before = store.stats().cold_reads;
    table.get_in_step(&wanted, &mut rows, &store.ticket().unwrap()).unwrap();
    // Rows whose hint was overwritten may have left.
    assert!(store.stats().cold_reads - before < 30, "the rows were kept for the third step");
    assert_eq!(store.stats().lookahead_loaded, 0, "no row was read again");
}

#[test]
fn announcements_do_not_wait_while_all_rows_are_in_memory() {
    let (store, table) = in_turns();
    put_numbered(&table, 0, 100);
    let announce = || {
        assert!(table.lookahead(&[1, 2, 1_000_000], Destination::Buffer { steps: 1 }).unwrap());
        (store.stats().lookahead_rows, store.lookahead_pending())
    };
    assert_eq!(announce(), (3, 0), "100 rows have room, and the last id has none");
    put_numbered(&table, 100, 20_000);
    assert_eq!(announce(), (6, 1));
}

/// The fewest possible reads from step `from` on, with memory for `memory` rows: eviction of the row whose
/// next use is farthest away (Belady's rule).
fn fewest_reads(steps: &[Vec<u64>], memory: usize, from: usize) -> u64 {
    let mut next_uses = vec![HashMap::new(); steps.len()];
    let mut next = HashMap::new();
    for (number, ids) in steps.iter().enumerate().rev() {
        for &id in ids {
            next_uses[number].insert(id, next.insert(id, number).unwrap_or(usize::MAX));
        }
    }
    let (mut reads, mut held) = (0, HashMap::new());
    for (number, next_uses) in next_uses.into_iter().enumerate() {
        for (id, next) in next_uses {
            reads += u64::from(held.insert(id, next).is_none() && number >= from);
        }
        let mut by_use: Vec<(usize, u64)> = held.iter().map(|(&id, &next)| (next, id)).collect();
        by_use.sort_unstable();
        by_use.iter().skip(memory).for_each(|(_, id)| assert!(held.remove(id).is_some()));
    }
    reads
}

#[test]
fn reads_are_close_to_the_minimum_at_any_lookahead_distance() {
    const ROWS: u64 = 6000;
    const COUNT: usize = 150;
    const FROM: usize = 50;
    const AHEAD: usize = 50;
    let (store, table) = in_turns();
    put_numbered(&table, 0, ROWS);
    let mut random = 1_u64;
    let steps: Vec<Vec<u64>> = (0..COUNT)
        .map(|_| {
            let mut ids = BTreeSet::new();
            while ids.len() < 150 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ids.insert((random >> 33) % ROWS);
            }
            ids.into_iter().collect()
        })
        .collect();
    let fewest = fewest_reads(&steps, 1400, FROM);
    let announce = |step: usize, ahead: usize| {
        if let Some(ids) = steps.get(step) {
            assert!(table.lookahead(ids, Destination::Buffer { steps: ahead as u64 }).unwrap());
        }
        while store.turn(Work::LookAhead).unwrap() {}
    };
    (0..AHEAD).for_each(|step| announce(step, step + 1));
    let (mut row, mut before) = (vec![0.0; 150 * 128], 0);
    for (number, ids) in steps.iter().enumerate() {
        if number == FROM {
            before = store.stats().cold_reads + store.stats().lookahead_loaded;
        }
        table.get_in_step(ids, &mut row, &store.ticket().unwrap()).unwrap();
        announce(number + AHEAD, AHEAD);
    }
    let stats = store.stats();
    let read = stats.cold_reads + stats.lookahead_loaded - before;
    assert!(read * 10 < fewest * 13, "{read} rows read, the minimum is {fewest}");
}

/// Slots of deleted rows stay occupied until another row needs them, but must not count as rows in memory.
#[test]
fn rows_are_prefetched_after_many_others_were_deleted() {
    let (store, table) = in_turns();
    put_numbered(&table, 0, 20_000);
    // Fewer rows are left than memory has slots, and most of them are cold.
    let gone: Vec<u64> = (1000..20_000).collect();
    assert_eq!(table.delete(&gone).unwrap(), gone.len());
    let resident = store.stats().rows_resident;
    assert!(resident <= 1000, "{resident} of 1000 rows are reported to be in memory");
    let wanted: Vec<u64> = (0..100).collect();
    assert!(table.lookahead(&wanted, Destination::Buffer { steps: 1 }).unwrap());
    while store.turn(Work::LookAhead).unwrap() {}
    let loaded = store.stats().lookahead_loaded;
    assert!(loaded > 90, "{loaded} of 100 rows were loaded");
}

/// Waiting announcements keep their ids, so both their bytes and their number are limited.
#[test]
fn announcements_of_too_many_ids_are_dropped_and_counted() {
    let (store, table) = in_turns();
    put_numbered(&table, 0, 20_000);
    let memory = store.stats().memory_budget;
    let ids: Vec<u64> = (0..20_000).collect();
    let announced =
        (0..200).take_while(|_| table.lookahead(&ids, Destination::Cache).unwrap()).count() as u64;
    let bytes = announced * size_of_val(&ids[..]) as u64;
    assert!(announced > 0 && bytes <= memory / 16, "{announced} announcements of {bytes} bytes wait");
    assert_eq!(store.stats().lookahead_dropped, 1);
    // Processed announcements make room again.
    while store.turn(Work::LookAhead).unwrap() {}
    assert!(table.lookahead(&ids, Destination::Cache).unwrap());
    // An announcement that can never fit is dropped before its ids are copied.
    let many = vec![7; (memory / 8) as usize];
    assert!(!table.lookahead(&many, Destination::Cache).unwrap());
    assert_eq!(store.stats().lookahead_dropped, 2);
}
