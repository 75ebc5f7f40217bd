//! All public calls at once: threads draw calls at random until the store is closed.
//!
//! Answers are not checked here (`tests/history` does that). Each call must end with rows or with an error
//! that the mix of calls explains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rowmill_store::*;
use rowmill_testkit::Rng64;

use crate::common::{SGD, open, spec};
use crate::watchdog::Watchdog;

const DIM: usize = 8;
const ROWS: u64 = 20_000;
const BATCH_MAX: u64 = 16_384;
/// How long a store is used before it is closed during calls.
const LIFE: Duration = Duration::from_millis(1500);
/// Maximum number of tables added to each store.
const TABLES_MAX: u64 = 40;

/// Number of callers, and of threads of the pool.
const SHAPES: [(usize, usize); 3] = [(2, 8), (4, 8), (8, 16)];

fn seconds() -> Duration {
    let long = std::env::var_os("ROWMILL_TEST_LONG").is_some();
    Duration::from_secs(if long { 100 } else { 6 })
}

fn options(threads: usize) -> StoreOptions {
    StoreOptions {
        memory: 32 << 20,
        row_memory: Some(768 << 10),
        threads,
        spread_rows_min: 1,
        wait_deadline: Duration::from_secs(2),
        feed: Some(FeedOptions { interval: Duration::from_millis(20), ..FeedOptions::default() }),
        ..StoreOptions::default()
    }
}

fn specs() -> [TableSpec; 4] {
    let clocked = spec(DIM as u32, SGD);
    let plain = TableSpec { staleness: StalenessBound::Infinite, ..clocked };
    let rule = EvictionRule::TtlSteps { steps: 40 };
    [
        TableSpec { staleness: StalenessBound::Steps(2), ..clocked },
        plain,
        TableSpec { ids: IdRange::Dense { rows: ROWS }, ..plain },
        TableSpec { eviction: Some(Eviction { rule, every: 0 }), ..plain },
    ]
}

/// An open store, and the state that its callers share.
struct Mix<'a> {
    volume: MemoryVolume,
    store: Arc<Store>,
    tables: Vec<Table>,
    made: AtomicU64,
    watchdog: &'a Watchdog,
}

impl Mix<'_> {
    /// Draw calls until the store is closed.
    fn work(&self, rng: &mut Rng64) {
        loop {
            let result = self.call(rng);
            self.watchdog.call_ended();
            match result {
                Err(StoreError::Closed) => return,
                // Steps that wait for each other, a checkpoint prepared by another caller, a commit without a
                // prepared checkpoint, no memory for one more group.
                Ok(())
                | Err(
                    StoreError::StepConflict { .. }
                    | StoreError::StepOver { .. }
                    | StoreError::StalenessTimeout { .. }
                    | StoreError::InDoubt { .. }
                    | StoreError::FeedFailed { .. }
                    | StoreError::FeedGap { .. }
                    | StoreError::NoCheckpoint { .. }
                    | StoreError::ChangesGone { .. }
                    | StoreError::MemoryTooSmall { .. }
                    | StoreError::Option { option: "commit", .. },
                ) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn call(&self, rng: &mut Rng64) -> Result<(), StoreError> {
        let (store, table) = (&self.store, &self.tables[rng.below(self.tables.len() as u64) as usize]);
        let ids = draw_ids(rng);
        let mut rows = vec![0.5; ids.len() * DIM];
        match rng.below(24) {
            0..4 => self.train(rng, &ids, &mut rows)?,
            4..7 => {
                let offsets: Vec<i64> = (0..=ids.len() as i64).collect();
                store.evaluate(&[(table, bag(&ids, &offsets))], &mut rows, DIM, None)?;
            }
            7 | 8 => table.get(&ids, &mut rows)?,
            9 | 10 => table.put(&ids, &rows, None)?,
            11 | 12 => table.rmw(&ids, &rows, None, None)?,
            13 => _ = table.delete(&ids[..ids.len().min(50)])?,
            14 => table.scan(1000, |_, _| true)?,
            15 => {
                let ticket = Arc::new(store.ticket()?);
                let get = self.tables[0].get_later(&ids, &ticket)?;
                self.tables[0].get_or_init(&ids, &mut rows, Some(&ticket))?;
                if rng.one_in(2) {
                    drop(ticket);
                }
                get.wait()?;
            }
            16 => {
                let steps = rng.below(4);
                let destination = if steps == 0 { Destination::Cache } else { Destination::Buffer { steps } };
                table.lookahead(&ids, destination)?;
            }
            17 => drop(self.tables[3].evict()?),
            18 => {
                let number = self.made.fetch_add(1, Relaxed);
                if number < TABLES_MAX {
                    // Some in other groups, too.
                    let dim = DIM as u32 + (number % 2) as u32;
                    store.table(&format!("made {number}"), &spec(dim, SGD))?;
                }
                store.open_table(table.name())?;
            }
            19 => _ = store.checkpoint(&[("mix", b"bytes")])?,
            20 => {
                store.prepare(&[])?;
                store.commit()?;
            }
            21 => {
                let changes = store.changes(0)?;
                changes.for_each(1000, |_| true)?;
            }
            22 => {
                store.publish()?;
                let volume: Arc<dyn Volume> = Arc::new(self.volume.clone());
                let mut reader = FeedReader::open(&volume, 0)?;
                for _ in 0..100 {
                    if reader.poll()?.is_none() {
                        break;
                    }
                }
            }
            _ => {
                store.stats();
                table.contains(&ids)?;
                assert!(table.len() <= ROWS as usize);
                drop(store.metrics());
            }
        }
        Ok(())
    }

    /// A step over two tables, with or without gradients.
    fn train(&self, rng: &mut Rng64, ids: &[u64], rows: &mut [f32]) -> Result<(), StoreError> {
        let offsets: Vec<i64> = (0..=ids.len() as i64).collect();
        let table = &self.tables[rng.below(2) as usize];
        let ticket = self.store.ticket()?;
        let lookup = self.store.lookup(&[(table, bag(ids, &offsets))], rows, DIM, Some(&ticket))?;
        if !rng.one_in(4) {
            rows.fill(0.25);
            self.store.apply(&lookup, rows, DIM, &[0.5], Some(&ticket))?;
        }
        Ok(())
    }
}

/// Open the store. If the last one was closed between a prepare and its commit, open it at the committed
/// checkpoint.
fn reopen(volume: &MemoryVolume, options: &StoreOptions) -> Arc<Store> {
    match Store::open_volume(Arc::new(volume.clone()), options.clone()) {
        Err(StoreError::InDoubt { committed, .. }) => {
            open(volume, &StoreOptions { at: Some(committed), ..options.clone() })
        }
        opened => opened.unwrap(),
    }
}

fn draw_ids(rng: &mut Rng64) -> Vec<u64> {
    let count = match rng.below(4) {
        0 => 1 + rng.below(4),
        1 | 2 => 1 + rng.below(1000),
        _ => 1 + rng.below(BATCH_MAX),
    };
    (0..count).map(|_| rng.below(ROWS)).collect()
}

fn bag<'a>(ids: &'a [u64], offsets: &'a [i64]) -> IdBag<'a> {
    IdBag { ids, offsets, weights: None, padding: None, pooling: Pooling::Sum }
}

#[test]
fn all_kinds_of_calls_at_the_same_time_end() {
    let panics = Arc::new(AtomicU64::new(0));
    let (count, print) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        count.fetch_add(1, Relaxed);
        print(panic);
    }));
    for (callers, threads) in SHAPES {
        let (begun, watchdog) = (Instant::now(), Watchdog::start());
        let volume = MemoryVolume::new();
        let (mut spread, mut life) = (0, 0);
        while begun.elapsed() < seconds() || spread < 1000 {
            life += 1;
            let store = reopen(&volume, &options(threads));
            let table =
                |(number, spec): (usize, TableSpec)| store.table(&format!("{number}"), &spec).unwrap();
            let tables = specs().into_iter().enumerate().map(table).collect();
            let mix =
                Mix { volume: volume.clone(), store, tables, made: AtomicU64::new(0), watchdog: &watchdog };
            std::thread::scope(|scope| {
                for caller in 0..callers as u64 {
                    let mix = &mix;
                    scope.spawn(move || mix.work(&mut Rng64::new(life * 100 + caller)));
                }
                std::thread::sleep(LIFE);
                mix.store.close();
            });
            spread += mix.store.jobs_spread();
            assert_eq!(panics.load(Relaxed), 0, "a thread of the store or a caller panicked");
        }
        println!(
            "{callers} callers on {threads} threads: {} calls, {spread} jobs spread, {life} stores closed",
            watchdog.calls()
        );
    }
}
