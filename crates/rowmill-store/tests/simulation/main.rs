//! Simulation: the whole store on a failing machine, thousands of runs.
//!
//! What could break: an acknowledged checkpoint is missing or incomplete; damaged bytes are returned as rows;
//! an error is not reported, or reported as another; a store continues to write after it lost a write; rows
//! move while a slow device reads them. Each run draws a schedule from its seed: about two hundred calls on a
//! store too small for its rows. The simulated device fails by the schedule, with crashes that lose unsynced
//! data and tear writes in progress. A plain model gives the expected answers. The tested guarantees:
//!
//! * After a crash the store opens at its last acknowledged checkpoint, bit for bit, or at the one that was
//!   being made. All clocks are zero.
//! * Damaged data is refused, never returned.
//! * An error is reported once, a failed write makes the store refuse writes, and reads continue.
//!
//! The store has no threads here: its background work is part of the schedule ([`Background::Turns`]), so a
//! seed replays bit for bit. The schedule also fixes which calls overtake a slow operation. Fewer runs use
//! the store's own threads; those repeat their calls and faults, but not the order of the threads.
//!
//! `ROWMILL_SIM_SEED=17 cargo test -p rowmill-store --test simulation -- --nocapture` prints and runs one
//! schedule. `ROWMILL_SIM_SECONDS=3600` instead runs new ones for that long, and prints how many per second.

#[path = "../common/mod.rs"]
mod common;

mod aside;
mod model;
mod opened;
mod schedule;
mod seen;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

use rowmill_sync::unranked::Mutex;
use rowmill_testkit::Fault;

use schedule::Schedule;
use seen::Seen;
use world::World;

const SCHEDULES: u64 = 10_000;
const SCHEDULES_WITH_THREADS: u64 = 480;
const SEED: &str = "ROWMILL_SIM_SEED";
const SECONDS: &str = "ROWMILL_SIM_SECONDS";

/// Run schedules on every core while `more` returns true. A failed run prints how to repeat it.
fn run_all(threads: bool, first: u64, more: impl Fn(u64) -> bool + Sync) -> Seen {
    let (next, failed) = (AtomicU64::new(first), AtomicU64::new(u64::MAX));
    let all = Mutex::new(Seen::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, SeqCst);
                    if !more(seed) || failed.load(SeqCst) != u64::MAX {
                        return;
                    }
                    let run = || World::run(&Schedule::new(seed), threads, false).0;
                    match catch_unwind(AssertUnwindSafe(run)) {
                        Ok(seen) => all.lock().add(&seen),
                        Err(_) => drop(failed.fetch_min(seed, SeqCst)),
                    }
                }
            });
        }
    });
    let failed = failed.load(Relaxed);
    assert!(
        failed == u64::MAX,
        "schedule {failed} failed; {SEED}={failed} cargo test -p rowmill-store --test simulation -- --nocapture"
    );
    all.into_inner()
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, got {text:?}")))
}

#[test]
fn every_schedule_keeps_the_promise() {
    if let Some(seed) = number(SEED) {
        let schedule = Schedule::new(seed);
        println!("schedule {seed}: {:?}", schedule.shape);
        World::run(&schedule, false, true);
        return;
    }
    let begun = Instant::now();
    let seen = match number(SECONDS).map(Duration::from_secs) {
        Some(time) => {
            // Other seeds than in short runs, and different ones each time.
            let first = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() << 20;
            run_all(false, first, |_| begun.elapsed() < time)
        }
        None => run_all(false, 0, |seed| seed < SCHEDULES),
    };
    println!("{seen}{:.0} schedules a second", seen.schedules as f64 / begun.elapsed().as_secs_f64());
    seen.assert_complete();
}

#[test]
fn schedules_keep_the_promise_with_threads() {
    if number(SEED).is_some() || number(SECONDS).is_some() {
        return;
    }
    let seen = run_all(true, 0, |seed| seed < SCHEDULES_WITH_THREADS);
    println!("{seen}");
    // Only without threads does the schedule fix which calls overtake a slow operation.
    let errors: Vec<Fault> = Fault::ALL.into_iter().filter(|&fault| fault != Fault::Slow).collect();
    seen.assert_faults(&errors);
    assert!(seen.crashes_that_lost > 0, "no crash lost anything");
    assert!(seen.refused > 0, "no store was refused for its damage");
}

#[test]
fn a_seed_repeats_bit_for_bit() {
    for seed in (0..48).map(|number| number * 7919) {
        let run = || World::run(&Schedule::new(seed), false, false);
        let ((one, files), (other, files_again)) = (run(), run());
        assert_eq!((one.calls, one.evictions, files), (other.calls, other.evictions, files_again), "{seed}");
        assert_eq!((one.hit, one.changed), (other.hit, other.changed), "{seed}");
    }
}
