//! What a checkpoint costs training that continues meanwhile.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rowmill_rows::StalenessBound;
use rowmill_store::{CheckpointInfo, Store, Table};
use serde::Serialize;

use crate::arrivals::percentile;
use crate::measure::print;
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::workload::Workload;

/// One checkpoint, and the training steps before and during it.
#[derive(Debug, Serialize)]
struct Checkpoint {
    round: usize,
    /// How long the cut blocked changes of rows.
    cut_ms: f64,
    duration_ms: f64,
    steps_before: usize,
    steps_during: usize,
    step_before_p50_ms: f64,
    step_before_max_ms: f64,
    step_during_p50_ms: f64,
    step_during_p99_ms: f64,
    step_during_max_ms: f64,
    /// Bytes of distinct rows changed since the previous cut.
    changed_bytes: u64,
    /// All bytes written to the log since then.
    log_bytes: u64,
    /// Of these bytes, rows in memory that the checkpoint saved.
    saved_bytes: u64,
    /// Bytes of index files.
    file_bytes: u64,
}

/// Training steps since the last checkpoint.
#[derive(Default)]
struct Steps {
    times: Vec<Duration>,
    /// Whether each row was changed, by id.
    changed: Vec<bool>,
}

/// Train; at the end of each round, make a checkpoint while training continues.
pub(crate) fn run(settings: &Settings) -> Result<(), Failure> {
    let folder = settings.folder.join("checkpoint");
    let store = stores::create_store(settings, &folder)?;
    let table = store.table("rows", &stores::spec(settings, StalenessBound::Steps(0)))?;
    stores::load(&table, settings.rows)?;
    store.checkpoint(&[])?;
    let mut workload = Workload::new(settings, 1);
    let mut steps = Steps { changed: vec![false; settings.rows as usize], ..Steps::default() };
    let mut written = store.stats().device_bytes_written;
    for round in 0..settings.rounds {
        workload.draw();
        let end = Instant::now() + Duration::from_secs_f64(settings.seconds);
        // At least one step, however long it takes.
        while steps.times.is_empty() || Instant::now() < end {
            train(&store, &table, &mut workload, &mut steps)?;
        }
        let mut before = std::mem::take(&mut steps.times);
        let changed = steps.changed.iter().filter(|changed| **changed).count();
        steps.changed.fill(false);
        let info = beside(&store, || train(&store, &table, &mut workload, &mut steps))?;
        let now = store.stats().device_bytes_written;
        let row_bytes = settings.row_bytes as u64;
        let mut during = std::mem::take(&mut steps.times);
        before.sort_unstable();
        during.sort_unstable();
        let ms = |times: &[Duration], share| percentile(times, share).as_secs_f64() * 1e3;
        print(&Checkpoint {
            round,
            cut_ms: info.stall.as_secs_f64() * 1e3,
            duration_ms: info.duration.as_secs_f64() * 1e3,
            steps_before: before.len(),
            steps_during: during.len(),
            step_before_p50_ms: ms(&before, 0.5),
            step_before_max_ms: ms(&before, 1.0),
            step_during_p50_ms: ms(&during, 0.5),
            step_during_p99_ms: ms(&during, 0.99),
            step_during_max_ms: ms(&during, 1.0),
            changed_bytes: changed as u64 * row_bytes,
            log_bytes: now - written,
            saved_bytes: info.rows_saved * row_bytes,
            file_bytes: info.file_bytes,
        });
        written = now;
    }
    drop((store, table));
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Make a checkpoint on another thread, and train until it is done.
fn beside(store: &Store, mut step: impl FnMut() -> Result<(), Failure>) -> Result<CheckpointInfo, Failure> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| {
            let info = store.checkpoint(&[]);
            done.store(true, Relaxed);
            info
        });
        while !done.load(Relaxed) {
            step()?;
        }
        Ok(checkpoint.join().expect("checkpoints do not panic")?)
    })
}

/// One step: read a batch of rows, change them, and release their clocks.
fn train(store: &Store, table: &Table, workload: &mut Workload, steps: &mut Steps) -> Result<(), Failure> {
    let dim = table.spec().dim as usize;
    workload.one(dim, |ids, rows| {
        let begin = Instant::now();
        let ticket = store.ticket()?;
        table.get_or_init(ids, rows, Some(&ticket))?;
        table.rmw(ids, rows, None, Some(&ticket))?;
        steps.times.push(begin.elapsed());
        for id in ids {
            steps.changed[*id as usize] = true;
        }
        Ok(())
    })
}
