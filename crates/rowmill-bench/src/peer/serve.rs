//! The process of a peer: rounds on request.

use std::io::BufRead;
use std::time::Instant;

use crate::measure::{print, sample};
use crate::optimizer::Optimizer;
use crate::peer::change::change;
use crate::peer::{Engine, Loading, PeerKind, Work};
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::training::{Batches, GRADIENT, key};
use crate::workload::Workload;

/// Peers train one step for this many of the store: at their rate a round is long enough.
const STEPS_PART: usize = 8;

/// Load an engine, say so, and do a round for every line `ROUND THREADS`.
pub(super) fn serve<E: Loading>(
    settings: &Settings,
    kind: PeerKind,
    work: Work,
    create: impl FnOnce() -> Result<E, Failure>,
) -> Result<(), Failure> {
    let settings = &Settings { steps: settings.steps.div_ceil(STEPS_PART), ..settings.clone() };
    // What is drawn and copied out is not the engine's memory, so it is there before the limit is.
    let mut workloads: Vec<(usize, Workload)> = Vec::new();
    let mut batches = None;
    match work {
        Work::Train => batches = Some(Batches::new(settings)),
        Work::Get | Work::Rmw => {
            let with = |&threads| (threads, Workload::new(settings, threads));
            workloads = settings.peer_threads.iter().map(with).collect();
            for (_, workload) in &mut workloads {
                workload.draw();
            }
        }
    }
    let engine = create()?;
    load(&engine, settings, if work == Work::Train { settings.tables } else { 1 })?;
    println!("loaded");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let request = line.split_once(' ').ok_or("a request is ROUND THREADS")?;
        let (round, threads) = (request.0.parse()?, request.1.parse::<usize>()?);
        let mut line = if let Some(batches) = &mut batches {
            batches.draw();
            sample(kind.name(), threads, round, || train(&engine, settings, batches, threads))
        } else {
            let (_, workload) =
                workloads.iter_mut().find(|(count, _)| *count == threads).ok_or("not a --peer-threads")?;
            workload.draw();
            let run = || match work {
                Work::Get => workload.run(settings.row_bytes / 4, |ids, rows| {
                    engine.get(ids, rows).expect("every row is stored");
                }),
                _ => workload.run(settings.dim(), |ids, gradients| rmw(&engine, settings, ids, gradients)),
            };
            sample(kind.name(), threads, round, run)
        };
        let begin = Instant::now();
        engine.settle()?;
        line.settle_s = begin.elapsed().as_secs_f64();
        print(&line);
    }
    Ok(())
}

/// Store every row of every table once, as the store is loaded.
pub(super) fn load(engine: &dyn Loading, settings: &Settings, tables: u64) -> Result<(), Failure> {
    let row_floats = settings.row_bytes / 4;
    for table in 0..tables {
        for first in (0..settings.rows).step_by(stores::LOAD_BATCH as usize) {
            let ids = first..(first + stores::LOAD_BATCH).min(settings.rows);
            let keys: Vec<u64> = ids.clone().map(|id| key(table, id)).collect();
            let mut rows = vec![0.0; keys.len() * row_floats];
            for (row, id) in rows.chunks_mut(row_floats).zip(ids) {
                settings.optimizer.initialize(row);
                stores::weights(id, &mut row[..settings.dim()]);
            }
            engine.append(&keys, &rows)?;
        }
    }
    engine.settle()
}

/// One optimizer step on the rows of `ids`.
pub(super) fn rmw(engine: &dyn Engine, settings: &Settings, ids: &[u64], gradients: &[f32]) {
    let dim = settings.dim();
    change(engine, settings.optimizer, settings.row_bytes / 4, ids, |position, _, sum| {
        let gradient = &gradients[position * dim..][..dim];
        sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
    })
    .expect("every row is stored");
}

/// The steps of a round, the features of each divided among threads; the rows looked up.
pub(super) fn train(engine: &dyn Engine, settings: &Settings, batches: &mut Batches, threads: usize) -> u64 {
    let (dim, row_floats) = (settings.dim(), settings.row_bytes / 4);
    let optimizer: Optimizer = settings.optimizer;
    let part = (settings.tables as usize).div_ceil(threads) * settings.batch;
    let mut rows = 0;
    for step in 0..settings.steps {
        let (keys, out) = batches.step(step);
        rows += keys.len() as u64;
        std::thread::scope(|scope| {
            for (keys, out) in keys.chunks(part).zip(out.chunks_mut(part * dim)) {
                scope.spawn(move || {
                    change(engine, optimizer, row_floats, keys, |position, weights, sum| {
                        // What a dense model would read, and a gradient that needs no model.
                        out[position * dim..][..dim].copy_from_slice(weights);
                        sum.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += GRADIENT * weight);
                    })
                    .expect("every row is stored");
                });
            }
        });
    }
    rows
}
