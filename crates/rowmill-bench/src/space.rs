//! How much of the device a store takes whose rows are rewritten without end, and how long gets wait
//! meanwhile.

use std::path::Path;
use std::time::Duration;

use rowmill_store::{Store, Table};
use rowmill_testkit::UniformIds;
use serde::Serialize;

use crate::arrivals::{Arrivals, percentile};
use crate::device_probe::read_blocks;
use crate::measure::print;
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::workload::Workload;

/// A checkpoint follows when this part of the rows has been rewritten.
const CHECKPOINT_SHARE: f64 = 0.1;
/// Space is looked at so often while rows are rewritten.
const LOOK_S: f64 = 0.1;
/// Rows of a get whose latency is measured.
const GET_ROWS: usize = 64;
/// Part of the device's reads that the gets and updates whose latency is measured make.
const LOAD: f64 = 0.5;

/// What the device holds.
#[derive(Debug, Serialize)]
struct Space {
    /// How often the rows have been rewritten.
    rewritten: f64,
    live_bytes: u64,
    used_bytes: u64,
    pinned_bytes: u64,
    free_bytes: u64,
    /// Blocks the file system gave to the log and to the files of the index.
    log_bytes: u64,
    index_bytes: u64,
    /// Written to the log so far over the bytes of the rows changed.
    write_amplification: f64,
    checkpoint: bool,
}

/// How long gets took, from when they were due.
#[derive(Debug, Serialize)]
struct Latency {
    /// What went on beside.
    beside: &'static str,
    gets: usize,
    gets_per_s: f64,
    device_reads_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
}

/// Rewrite rows, then measure gets: alone, and beside updates.
pub(crate) fn run(settings: &Settings) -> Result<(), Failure> {
    let folder = settings.folder.join("space");
    let (store, table) = stores::create(settings, &folder)?;
    stores::load(&table, settings.rows)?;
    store.checkpoint(&[])?;
    rewrite(settings, &folder, &store, &table)?;
    let device = read_blocks(&folder.join("group-0.log"), settings.seconds, 0)? as f64 / settings.seconds;
    for beside in ["nothing", "updates"] {
        print(&latency(settings, &store, &table, beside, device));
    }
    drop((store, table));
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

fn rewrite(settings: &Settings, folder: &Path, store: &Store, table: &Table) -> Result<(), Failure> {
    let mut workload = Workload::new(&Settings { seconds: LOOK_S, ..settings.clone() }, settings.threads);
    let written = store.stats().device_bytes_written;
    let (mut rows, mut next) = (0, CHECKPOINT_SHARE);
    loop {
        workload.draw();
        rows += workload.run(settings.dim(), |ids, gradients| {
            table.rmw(ids, gradients, None, None).expect("the disk works");
        });
        let rewritten = rows as f64 / settings.rows as f64;
        let checkpoint = rewritten >= next;
        if checkpoint {
            next += CHECKPOINT_SHARE;
            store.checkpoint(&[])?;
        }
        let stats = store.stats();
        let on_device = |name| allocated_bytes(folder, name);
        print(&Space {
            rewritten,
            live_bytes: stats.device_live_bytes,
            used_bytes: stats.device_used_bytes,
            pinned_bytes: stats.device_pinned_bytes,
            free_bytes: stats.device_free_bytes,
            log_bytes: on_device(true)?,
            index_bytes: on_device(false)?,
            write_amplification: (stats.device_bytes_written - written) as f64
                / (rows as f64 * settings.row_bytes as f64),
            checkpoint,
        });
        if rewritten >= settings.rewrites {
            return Ok(());
        }
    }
}

/// Bytes that the file system gave to the logs of a store, or to its other files.
fn allocated_bytes(folder: &Path, logs: bool) -> Result<u64, Failure> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if (entry.path().extension().is_some_and(|extension| extension == "log")) == logs {
            // A file that a checkpoint replaces may be gone by now.
            bytes += entry.metadata().map_or(0, |file| file.blocks() * 512);
        }
    }
    Ok(bytes)
}

/// Gets (and updates) that come at random instants, as many as read `LOAD` of what the device gives.
fn latency(settings: &Settings, store: &Store, table: &Table, beside: &'static str, device: f64) -> Latency {
    let misses = 1.0 - store.stats().rows_resident as f64 / settings.rows as f64;
    let updates = beside == "updates";
    let calls_per_s = LOAD * device / (GET_ROWS as f64 * misses);
    let arrivals = Arrivals { per_s: calls_per_s, seconds: settings.seconds, seed: settings.seed };
    let dim = settings.dim();
    let read = store.stats().device_blocks_read;
    let mut waits: Vec<Duration> = arrivals.run(|call| {
        let mut ids = [0; GET_ROWS];
        UniformIds::new(settings.rows, settings.seed + 1000 + call as u64).fill(&mut ids);
        let mut rows = vec![0.25; GET_ROWS * dim];
        // Every other call is an update; its latency is not asked for.
        if updates && call % 2 == 1 {
            table.rmw(&ids, &rows, None, None).expect("the disk works");
            return false;
        }
        table.get(&ids, &mut rows).expect("the disk works");
        true
    });
    let reads = store.stats().device_blocks_read - read;
    waits.sort_unstable();
    let ms = |share| percentile(&waits, share).as_secs_f64() * 1e3;
    Latency {
        beside,
        gets: waits.len(),
        gets_per_s: waits.len() as f64 / settings.seconds,
        device_reads_per_s: reads as f64 / settings.seconds,
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        p999_ms: ms(0.999),
        max_ms: ms(1.0),
    }
}
