//! How much device space a store uses while its rows are rewritten repeatedly, and how long gets wait
//! meanwhile.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use rowmill_store::{Store, Table};
use rowmill_testkit::UniformIds;
use serde::Serialize;

use crate::arrivals::{Arrivals, percentile};
use crate::device_probe::{BlockReader, read_blocks};
use crate::measure::print;
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::workload::Workload;

/// A checkpoint is made after every rewrite of this fraction of the rows.
const CHECKPOINT_SHARE: f64 = 0.1;
/// Interval between two measurements of space while rows are rewritten, in seconds.
const LOOK_S: f64 = 0.1;
/// Rows per get whose latency is measured.
const GET_ROWS: usize = 64;
/// Fraction of the device's reads that the measured gets and updates use.
const LOAD: f64 = 0.5;

/// Space used on the device.
#[derive(Debug, Serialize)]
struct Space {
    /// How often the rows have been rewritten.
    rewritten: f64,
    live_bytes: u64,
    used_bytes: u64,
    pinned_bytes: u64,
    free_bytes: u64,
    /// Blocks that the file system allocated to the log; and, in the next field, to index files.
    log_bytes: u64,
    index_bytes: u64,
    /// Bytes written to the log so far, divided by the bytes of changed rows.
    write_amplification: f64,
    checkpoint: bool,
}

/// Latencies of gets, measured from when they were due.
#[derive(Debug, Serialize)]
struct Latency {
    round: usize,
    /// Concurrent work; or `probe`, for reads of the device without the store.
    beside: &'static str,
    gets: usize,
    gets_per_s: f64,
    device_reads_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
}

/// Rewrite rows, then measure gets in interleaved rounds: alone, and with concurrent updates.
pub(crate) fn run(settings: &Settings) -> Result<(), Failure> {
    let folder = settings.folder.join("space");
    let (store, table) = stores::create(settings, &folder)?;
    stores::load(&table, settings.rows)?;
    store.checkpoint(&[])?;
    rewrite(settings, &folder, &store, &table)?;
    // No other work than the one printed must run while gets are measured.
    stores::settle(&store)?;
    let log = folder.join("group-0.log");
    for round in 0..settings.rounds {
        let device = read_blocks(&log, settings.seconds, settings.seed + round as u64)? as f64;
        let load = Load::new(settings, &store, &table, &log, round, device / settings.seconds);
        print(&load.probe());
        for beside in ["nothing", "updates"] {
            print(&load.gets(beside));
        }
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

/// Bytes that the file system allocated to the logs of a store, or to its other files.
fn allocated_bytes(folder: &Path, logs: bool) -> Result<u64, Failure> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if (entry.path().extension().is_some_and(|extension| extension == "log")) == logs {
            // A checkpoint may just have replaced this file.
            bytes += entry.metadata().map_or(0, |file| file.blocks() * 512);
        }
    }
    Ok(bytes)
}

/// Random reads of a log while the store is idle, or gets and updates of its rows. They start at random
/// times, at a rate that uses the fraction `LOAD` of the device's reads.
struct Load<'a> {
    settings: &'a Settings,
    store: &'a Store,
    table: &'a Table,
    log: &'a Path,
    round: usize,
    /// Fraction of the rows that are not in memory.
    misses: f64,
    arrivals: Arrivals,
}

impl<'a> Load<'a> {
    /// `device`: random reads that the device serves in a second.
    fn new(
        settings: &'a Settings,
        store: &'a Store,
        table: &'a Table,
        log: &'a Path,
        round: usize,
        device: f64,
    ) -> Self {
        let misses = 1.0 - store.stats().rows_resident as f64 / settings.rows as f64;
        let calls_per_s = LOAD * device / (GET_ROWS as f64 * misses);
        let seed = settings.seed + round as u64;
        let arrivals = Arrivals { per_s: calls_per_s, seconds: settings.seconds, seed };
        Self { settings, store, table, log, round, misses, arrivals }
    }

    /// The limit: blocks read by a raw `io_uring`, as many per call as a get misses rows.
    fn probe(&self) -> Latency {
        let count = (GET_ROWS as f64 * self.misses).round() as usize;
        let idle = Mutex::new(Vec::new());
        let waits = self.arrivals.run(|call| {
            let reader = idle.lock().expect("no caller panics").pop();
            let mut reader: BlockReader = reader.unwrap_or_else(|| {
                BlockReader::open(self.log, count, self.seed_of(call)).expect("it was read before")
            });
            reader.read(count).expect("the disk works");
            idle.lock().expect("no caller panics").push(reader);
            true
        });
        let reads = (waits.len() * count) as u64;
        self.latency("probe", waits, reads)
    }

    fn gets(&self, beside: &'static str) -> Latency {
        let updates = beside == "updates";
        let settings = self.settings;
        let dim = settings.dim();
        let read = self.store.stats().device_blocks_read;
        let waits = self.arrivals.run(|call| {
            let mut ids = [0; GET_ROWS];
            UniformIds::new(settings.rows, self.seed_of(call)).fill(&mut ids);
            let mut rows = vec![0.25; GET_ROWS * dim];
            // Every other call is an update, whose latency is not measured.
            if updates && call % 2 == 1 {
                self.table.rmw(&ids, &rows, None, None).expect("the disk works");
                return false;
            }
            self.table.get(&ids, &mut rows).expect("the disk works");
            true
        });
        self.latency(beside, waits, self.store.stats().device_blocks_read - read)
    }

    /// A seed for the random numbers of one call.
    fn seed_of(&self, call: usize) -> u64 {
        self.settings.seed + 1000 + ((self.round as u64) << 32 | call as u64)
    }

    fn latency(&self, beside: &'static str, mut waits: Vec<Duration>, reads: u64) -> Latency {
        waits.sort_unstable();
        let ms = |share| percentile(&waits, share).as_secs_f64() * 1e3;
        Latency {
            round: self.round,
            beside,
            gets: waits.len(),
            gets_per_s: waits.len() as f64 / self.settings.seconds,
            device_reads_per_s: reads as f64 / self.settings.seconds,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            max_ms: ms(1.0),
        }
    }
}
