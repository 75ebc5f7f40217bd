//! What staleness clocks cost, for half gets and half puts in memory.

use rowmill_rows::StalenessBound;

use crate::measure::{print, sample};
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::workload::Workload;

/// Each batch of rows is read and put back, inside a step at staleness bound 0 as in training, and outside of
/// steps. Every counted row is read once and written once.
pub(crate) fn run(settings: &Settings) -> Result<(), Failure> {
    let store = stores::create_store(settings, &settings.folder.join("clocks"))?;
    let table = store.table("rows", &stores::spec(settings, StalenessBound::Steps(0)))?;
    stores::load(&table, settings.rows)?;
    let mut workload = Workload::new(settings, settings.threads);
    for round in 0..settings.rounds {
        workload.draw();
        for clocks in [round % 2 == 0, round % 2 == 1] {
            let engine = if clocks { "clocks_on" } else { "clocks_off" };
            print(&sample(engine, settings.threads, round, || {
                workload.run(settings.dim(), |ids, rows| {
                    let step = clocks.then(|| store.ticket().expect("few steps are open"));
                    table.get_or_init(ids, rows, step.as_ref()).expect("rows are in memory");
                    table.put(ids, rows, step.as_ref()).expect("rows are in memory");
                })
            }));
        }
    }
    Ok(())
}
