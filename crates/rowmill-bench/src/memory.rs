//! Cells whose rows are all in memory.

use rowmill_store::Table;

use crate::measure::{print, sample};
use crate::memory_probe::MemoryProbe;
use crate::peer::{Peer, Work};
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::workload::Workload;

/// Batched gets.
pub(crate) fn get(settings: &Settings) -> Result<(), Failure> {
    run(settings, Work::Get, MemoryProbe::get, |table, ids, out| {
        table.get(ids, out).expect("rows are in memory");
    })
}

/// Batched updates. The probe does gradient descent for every optimizer.
pub(crate) fn rmw(settings: &Settings) -> Result<(), Failure> {
    run(
        settings,
        Work::Rmw,
        |probe, ids, gradients| probe.rmw(ids, gradients),
        |table, ids, gradients| table.rmw(ids, gradients, None, None).expect("rows are in memory"),
    )
}

fn run(
    settings: &Settings,
    work: Work,
    limit: impl Fn(&MemoryProbe, &[u64], &mut [f32]) + Sync,
    own: impl Fn(&Table, &[u64], &mut [f32]) + Sync,
) -> Result<(), Failure> {
    let (_store, table) = stores::create(settings, &settings.folder.join("memory"))?;
    stores::load(&table, settings.rows)?;
    let probe = MemoryProbe::new(settings.rows, settings.row_bytes);
    let mut workload = Workload::new(settings, settings.threads);
    let mut peers = Peer::start_all(settings, work)?;
    let threads = settings.threads;
    for round in 0..settings.rounds {
        workload.draw();
        print(&sample("probe", threads, round, || {
            workload.run(settings.row_bytes / 4, |ids, floats| limit(&probe, ids, floats))
        }));
        print(&sample("rowmill", threads, round, || {
            workload.run(settings.dim(), |ids, floats| own(&table, ids, floats))
        }));
        for peer in &mut peers {
            peer.rounds(settings, round)?;
        }
    }
    Ok(())
}
