//! Linearizability: what many threads observe of few rows, compared with sequential executions.
//!
//! What could break: an update is lost or done twice; a read returns a row as it was before it left memory,
//! or a mix of two versions; a checkpoint holds a row as it never was; a training read runs ahead of its
//! staleness bound. Threads perform all operations on the same few rows, with memory too small for them,
//! while checkpoints are made and read. Every operation is recorded with its beginning and its end, and every
//! value identifies the writes that made it. Each row's history must then have a sequential order
//! (`checker.rs`).
//!
//! The same test with deliberate bugs, each of which must be found, needs a separate build (`src/seeded.rs`):
//! `cargo test -p rowmill-store --test history --features seeded-bugs`.

#[path = "../common/mod.rs"]
mod common;

mod checker;
mod operation;
mod recorder;
mod small;
mod workload;

use checker::{Violation, check};
use common::thread_counts;
use operation::{Effect, Operation};
use rowmill_store::Stats;
use workload::{BOUNDS, Done, Workload};

/// Memory for a sixth of the rows, so that hot rows leave it, too; all rows share one lock.
const CROWDED: Workload = Workload {
    seed: 1,
    operations: 1_450_000,
    checkpoints: 200,
    rows: 200,
    row_memory: 80 << 10,
    threads: 2,
};
/// Rows of several shards, whose clocks are taken one shard after the other.
const SPREAD: Workload =
    Workload { seed: 2, operations: 400_000, checkpoints: 40, rows: 3000, row_memory: 256 << 10, threads: 2 };

impl Workload {
    /// The result of checking every row's history, and the operations done.
    fn check(&self) -> (Result<(), Violation>, Vec<Operation>, Stats, u64) {
        let Done { mut operations, stats, read_again } = self.run();
        operations.sort_unstable_by_key(|operation| (operation.row, operation.begun));
        let check_row = |history: &[Operation]| check(history, BOUNDS[self.table_of(history[0].row)]);
        let result = operations.chunk_by(|one, next| one.row == next.row).try_for_each(check_row);
        (result, operations, stats, read_again)
    }

    fn pass(&self) {
        let (result, operations, stats, read_again) = self.check();
        result.unwrap_or_else(|violation| panic!("{violation}"));
        let is_saved = |operation: &&Operation| matches!(operation.effect, Effect::Saved { .. });
        let saved = operations.iter().filter(is_saved).count();
        assert_eq!(saved, self.checkpoints * self.rows as usize * BOUNDS.len());
        assert!(operations.len() - saved >= self.operations);
        // Events that must occur for the test to mean anything.
        for (count, what) in [
            (stats.evictions, "rows leave memory"),
            (stats.cold_reads, "rows are read from the device"),
            (stats.clock_waits, "steps wait for clocks"),
            (stats.staleness[2], "rows are read while two gets are outstanding"),
            (stats.lookahead_loaded, "lookahead loads rows"),
            (stats.compactions, "segments are cleaned"),
            (stats.deletes, "rows are deleted"),
        ] {
            assert!(count >= 20, "too rarely, {count} times: {what}");
        }
        let is_step = |operation: &&Operation| {
            matches!(operation.effect, Effect::Fetch { .. }) && BOUNDS[self.table_of(operation.row)].is_some()
        };
        let clocks = operations.iter().filter(is_step).count() as u64;
        // A step that reads its rows again takes the clocks of rows that were deleted in between.
        let counted = stats.staleness.iter().sum::<u64>();
        assert!(
            counted <= clocks && counted >= clocks - read_again,
            "a clock is counted once, when it is taken"
        );
        assert!(counted > clocks - read_again, "steps read deleted rows again");
        let is_hot = |operation: &&Operation| self.is_hot(operation.row) && !is_saved(operation);
        println!("{} operations on hot rows", operations.iter().filter(is_hot).count());
    }
}

/// Run the workload with every number of threads, splitting the operations between the runs.
fn pass_with_threads(workload: Workload) {
    let counts = thread_counts();
    for &threads in counts {
        let operations = workload.operations / counts.len();
        Workload { operations, threads, checkpoints: workload.checkpoints / counts.len(), ..workload }.pass();
    }
}

#[test]
fn histories_with_memory_for_few_rows_are_linearizable() {
    pass_with_threads(CROWDED);
}

#[test]
fn histories_in_several_shards_are_linearizable() {
    pass_with_threads(SPREAD);
}

#[cfg(feature = "seeded-bugs")]
#[test]
fn seeded_bugs_are_flagged() {
    use checker::Kind;
    use rowmill_store::{SeededBug, seed_bug};

    /// In total as many operations as the other test.
    const ROUNDS: u64 = 10;
    for (bug, kind) in [
        (SeededBug::LostUpdate, Kind::NotLinearizable),
        (SeededBug::StaleAddress, Kind::NotLinearizable),
        (SeededBug::NoBound, Kind::BeyondBound),
        (SeededBug::ForeignClock, Kind::BeyondBound),
    ] {
        seed_bug(bug);
        let violation = (0..ROUNDS).find_map(|round| {
            let operations = CROWDED.operations / ROUNDS as usize;
            let workload = Workload { seed: round, operations, checkpoints: 20, ..CROWDED };
            workload.check().0.err()
        });
        seed_bug(SeededBug::None);
        let violation = violation.unwrap_or_else(|| panic!("not flagged: {bug:?}"));
        println!("{bug:?} is flagged as {violation}");
        assert_eq!(violation.kind, kind, "{bug:?} is flagged as {violation}");
    }
}
