//! Cells whose rows exceed the memory.

use rowmill_store::{StoreError, Table};
use rowmill_testkit::resident_bytes;
use serde::Serialize;

use crate::device_probe::probe;
use crate::measure::{print, sample};
use crate::peer::{Peer, Work};
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::warm_up::warm_up;
use crate::workload::{Workload, best_static_hits};

/// Cache metrics of a round of a store with cold rows.
#[derive(Debug, Serialize)]
struct Cache {
    round: usize,
    hit_rate: f64,
    /// Share of accesses that the best fixed set of as many rows would serve.
    best_static: f64,
    rows_resident: u64,
    /// Growth of the process since before the store was opened, divided by the store's memory.
    growth_over_memory: f64,
    /// Number of warm-up rounds.
    warm_up: usize,
}

/// Batched gets.
pub(crate) fn get(settings: &Settings) -> Result<(), Failure> {
    run(settings, Work::Get, Table::get)
}

/// Batched updates.
pub(crate) fn rmw(settings: &Settings) -> Result<(), Failure> {
    run(settings, Work::Rmw, |table, ids, gradients| table.rmw(ids, gradients, None, None))
}

fn run(
    settings: &Settings,
    kind: Work,
    work: impl Fn(&Table, &[u64], &mut [f32]) -> Result<(), StoreError> + Sync,
) -> Result<(), Failure> {
    let folder = settings.folder.join("cold");
    let mut workload = Workload::new(settings, settings.threads);
    workload.draw();
    let begin = resident_bytes().unwrap_or(0);
    let (store, table) = stores::create(settings, &folder)?;
    stores::load(&table, settings.rows)?;
    store.checkpoint(&[])?;
    let mut peers = Peer::start_all(settings, kind)?;
    let mut round = |number| {
        workload.draw();
        let before = store.stats();
        let mut line = sample("rowmill", settings.threads, number, || {
            workload.run(settings.dim(), |ids, floats| work(&table, ids, floats).expect("the disk works"))
        });
        let after = store.stats();
        line.settle_s = stores::settle(&store)?.as_secs_f64();
        let lookups = after.lookups - before.lookups;
        let misses = (after.cold_reads - before.cold_reads) as f64 / lookups.max(1) as f64;
        Ok::<_, Failure>((line, misses))
    };
    let rounds = warm_up(settings.warm_up, || Ok(round(0)?.1))?;
    for peer in &mut peers {
        peer.warm_up(settings)?;
    }
    for number in 0..settings.rounds {
        probe(settings, &folder, number)?;
        let (line, misses) = round(number)?;
        print(&line);
        let resident = store.stats().rows_resident;
        let growth = resident_bytes().unwrap_or(0).saturating_sub(begin);
        print(&Cache {
            round: number,
            hit_rate: 1.0 - misses,
            best_static: best_static_hits(settings, resident),
            rows_resident: resident,
            growth_over_memory: growth as f64 / settings.memory as f64,
            warm_up: rounds,
        });
        for peer in &mut peers {
            peer.rounds(settings, number)?;
        }
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
