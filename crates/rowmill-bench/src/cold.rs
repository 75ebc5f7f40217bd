//! Cells whose rows outgrow the memory.

use rowmill_store::{StoreError, Table};
use rowmill_testkit::resident_bytes;
use serde::Serialize;

use crate::device_probe::read_blocks;
use crate::measure::{print, sample};
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::workload::{Workload, best_static_hits};

/// What the rounds of a store with cold rows come with.
#[derive(Debug, Serialize)]
struct Cache {
    round: usize,
    hit_rate: f64,
    /// Share of accesses that the best fixed set of as many rows would serve.
    best_static: f64,
    rows_resident: u64,
    /// What the process grew by since before the store was opened, over the store's memory.
    growth_over_memory: f64,
}

/// Batched gets.
pub(crate) fn get(settings: &Settings) -> Result<(), Failure> {
    run(settings, "cold-get", Table::get)
}

/// Batched updates.
pub(crate) fn rmw(settings: &Settings) -> Result<(), Failure> {
    run(settings, "cold-rmw", |table, ids, gradients| table.rmw(ids, gradients, None, None))
}

fn run(
    settings: &Settings,
    cell: &str,
    work: impl Fn(&Table, &[u64], &mut [f32]) -> Result<(), StoreError> + Sync,
) -> Result<(), Failure> {
    let folder = settings.folder.join(cell);
    let mut workload = Workload::new(settings);
    let begin = resident_bytes().unwrap_or(0);
    let (store, table) = stores::create(settings, &folder)?;
    stores::load(&table, settings.rows)?;
    store.checkpoint(&[])?;
    for round in 0..settings.rounds {
        let mut probed = Ok(0);
        let probe = sample("probe", round, || {
            probed = read_blocks(&folder.join("group-0.log"), settings.seconds, round as u64);
            *probed.as_ref().unwrap_or(&0)
        });
        probed?;
        print(&probe);
        let before = store.stats();
        print(&sample("rowmill", round, || {
            workload.run(settings.dim(), |ids, floats| work(&table, ids, floats).expect("the disk works"))
        }));
        let after = store.stats();
        let lookups = after.lookups - before.lookups;
        let growth = resident_bytes().unwrap_or(0).saturating_sub(begin);
        print(&Cache {
            round,
            hit_rate: 1.0 - (after.cold_reads - before.cold_reads) as f64 / lookups.max(1) as f64,
            best_static: best_static_hits(settings, after.rows_resident),
            rows_resident: after.rows_resident,
            growth_over_memory: growth as f64 / settings.memory as f64,
        });
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
