//! The process of a peer, which runs rounds on request.

use std::io::BufRead;
use std::sync::Arc;
use std::time::Instant;

use rowmill_peers::{Engine, PeerError, PeerKind, ReadAhead};

use crate::measure::{print, sample};
use crate::peer::step::step;
use crate::peer::{Work, ahead_max, open};
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::training::{Batches, GRADIENT, key, lookahead_steps};
use crate::workload::Workload;

/// A peer's round has this many times fewer steps than the store's: at its rate, that is long enough.
const STEPS_PART: usize = 8;
/// Threads that read ahead: enough to keep the device busy when each waits for its own read.
const AHEAD_THREADS: usize = 16;

/// Load an engine, print "loaded", and run a round for every line `ROUND THREADS`.
pub(super) fn serve(settings: &Settings, kind: PeerKind, work: Work) -> Result<(), Failure> {
    let settings = &Settings { steps: settings.steps.div_ceil(STEPS_PART), ..settings.clone() };
    // Drawn ids and output buffers are not the engine's memory, so they are allocated before the limit is
    // set.
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
    let tables = if work == Work::Train { settings.tables } else { 1 };
    let engine: Arc<dyn Engine> = open(kind, settings, tables, work != Work::Get)?.into();
    load(&*engine, settings, tables)?;
    let ahead =
        ReadAhead::start(&engine, if work == Work::Train { AHEAD_THREADS } else { 0 }, ahead_max(settings));
    println!("loaded");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let request = line.split_once(' ').ok_or("a request is ROUND THREADS")?;
        let (round, threads) = (request.0.parse()?, request.1.parse::<usize>()?);
        let mut line = if let Some(batches) = &mut batches {
            batches.draw();
            let mut done = Ok(0);
            let line = sample(kind.name(), threads, round, || {
                done = train(&*engine, &ahead, settings, batches, threads);
                *done.as_ref().unwrap_or(&0)
            });
            done?;
            line
        } else {
            let (_, workload) =
                workloads.iter_mut().find(|(count, _)| *count == threads).ok_or("not a --peer-threads")?;
            workload.draw();
            let run = || match work {
                Work::Get => workload.run(settings.row_bytes / 4, |ids, rows| {
                    engine.get(ids, rows).expect("every row is stored");
                }),
                _ => workload.run(settings.dim(), |ids, gradients| {
                    rmw(&*engine, settings, ids, gradients).expect("every row is stored");
                }),
            };
            sample(kind.name(), threads, round, run)
        };
        let begin = Instant::now();
        ahead.wait()?;
        engine.settle()?;
        line.settle_s = begin.elapsed().as_secs_f64();
        print(&line);
    }
    Ok(())
}

/// Store every row of every table once, with the same values as in the store.
pub(super) fn load(engine: &dyn Engine, settings: &Settings, tables: u64) -> Result<(), PeerError> {
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
pub(super) fn rmw(
    engine: &dyn Engine,
    settings: &Settings,
    ids: &[u64],
    gradients: &[f32],
) -> Result<(), PeerError> {
    let dim = settings.dim();
    step(engine, settings.optimizer, ids, |position, _, sum| {
        let gradient = &gradients[position * dim..][..dim];
        sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
    })
}

/// Run the steps of a round, each announced before it begins, with its features divided among threads.
/// Returns the number of rows looked up.
pub(super) fn train(
    engine: &dyn Engine,
    ahead: &ReadAhead,
    settings: &Settings,
    batches: &mut Batches,
    threads: usize,
) -> Result<u64, PeerError> {
    let dim = settings.dim();
    let part = (settings.tables as usize).div_ceil(threads) * settings.batch;
    let mut rows = 0;
    let mut announced = 0;
    for number in 0..settings.steps {
        while announced < settings.steps.min(number + lookahead_steps(settings)) {
            if announced > number {
                ahead.announce(batches.step(announced).0, (announced - number + 1) as u64);
            }
            announced += 1;
        }
        ahead.begin_step()?;
        let (keys, out) = batches.step(number);
        rows += keys.len() as u64;
        std::thread::scope(|scope| {
            let parts = keys.chunks(part).zip(out.chunks_mut(part * dim));
            let workers: Vec<_> = parts
                .map(|(keys, out)| {
                    scope.spawn(move || {
                        step(engine, settings.optimizer, keys, |position, weights, sum| {
                            // The rows that a dense model would read, and a gradient that needs no model.
                            out[position * dim..][..dim].copy_from_slice(weights);
                            sum.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += GRADIENT * weight);
                        })
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
    }
    Ok(rows)
}
