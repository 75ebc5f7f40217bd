//! Cells whose rows are all in memory.

use crate::measure::{print, sample};
use crate::memory_probe::MemoryProbe;
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::workload::Workload;

/// Batched gets.
pub(crate) fn get(settings: &Settings) -> Result<(), Failure> {
    let (_store, table) = stores::create(settings, &settings.folder.join("memory-get"))?;
    stores::load(&table, settings.rows)?;
    let probe = MemoryProbe::new(settings.rows, settings.row_bytes);
    let mut workload = Workload::new(settings);
    for round in 0..settings.rounds {
        print(&sample("probe", round, || {
            workload.run(settings.row_bytes / 4, |ids, out| probe.get(ids, out))
        }));
        print(&sample("rowmill", round, || {
            workload.run(settings.dim(), |ids, out| table.get(ids, out).expect("rows are in memory"))
        }));
    }
    Ok(())
}

/// Batched updates. The probe does gradient descent whatever the optimizer.
pub(crate) fn rmw(settings: &Settings) -> Result<(), Failure> {
    let (_store, table) = stores::create(settings, &settings.folder.join("memory-rmw"))?;
    stores::load(&table, settings.rows)?;
    let probe = MemoryProbe::new(settings.rows, settings.row_bytes);
    let mut workload = Workload::new(settings);
    for round in 0..settings.rounds {
        print(&sample("probe", round, || {
            workload.run(settings.row_bytes / 4, |ids, gradients| probe.rmw(ids, gradients))
        }));
        print(&sample("rowmill", round, || {
            workload.run(settings.dim(), |ids, gradients| {
                table.rmw(ids, gradients, None, None).expect("rows are in memory");
            })
        }));
    }
    Ok(())
}
