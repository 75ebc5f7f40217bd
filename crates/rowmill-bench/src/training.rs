//! A training loop without a model: rows of many tables are read, their gradients are computed from them, and
//! the rows are updated and stored.

use std::path::Path;
use std::sync::Arc;

use rowmill_rows::{IdBag, Pooling, StalenessBound};
use rowmill_store::{Destination, Store, Table};
use rowmill_testkit::{UniformIds, ZipfIds};
use serde::Serialize;

use crate::device_probe::probe;
use crate::measure::{print, sample};
use crate::peer::{Peer, Work};
use crate::settings::{Failure, Settings};
use crate::stores;
use crate::warm_up::warm_up;

/// Gradient of a weight, as a fraction of the weight.
pub(crate) const GRADIENT: f32 = 0.01;
/// Steps announced ahead: as `rowmill train` does, at most 60, and fewer if their ids would take more than 1/32 of the
/// memory, but at least 4.
pub(crate) fn lookahead_steps(settings: &Settings) -> usize {
    let ids_of_step = settings.tables as usize * settings.batch;
    (settings.memory as usize / 32 / (ids_of_step * size_of::<u64>())).clamp(4, 60)
}

/// Bits of the id in a peer's key. The table number is above them.
const ID_BITS: u32 = 40;

/// Device reads of a round of the store.
#[derive(Debug, Serialize)]
struct Reads {
    round: usize,
    steps: usize,
    /// Rows read from the device, by lookahead and by the steps.
    rows_read: u64,
    /// Rows read from the device by the steps.
    by_steps: u64,
    lookahead_late: u64,
    lookahead_dropped: u64,
}

/// The key of a row, for an engine with one table.
pub(crate) fn key(table: u64, id: u64) -> u64 {
    (table << ID_BITS) | id
}

/// The ids of all steps of a round, and a buffer for the rows of a step.
pub(crate) struct Batches {
    sources: Vec<Source>,
    batch: usize,
    /// Keys by step, table and position in the batch.
    keys: Vec<u64>,
    step_keys: usize,
    out: Vec<f32>,
}

#[allow(clippy::large_enum_variant, reason = "one per table")]
enum Source {
    Uniform(UniformIds),
    Zipf(ZipfIds),
}

impl Batches {
    pub(crate) fn new(settings: &Settings) -> Self {
        let source = |table| {
            let seed = settings.seed + table;
            if settings.zipf == 0.0 {
                Source::Uniform(UniformIds::new(settings.rows, seed))
            } else {
                Source::Zipf(ZipfIds::new(settings.rows, settings.zipf, seed).scrambled(seed))
            }
        };
        let step_keys = settings.tables as usize * settings.batch;
        let mut batches = Self {
            sources: (0..settings.tables).map(source).collect(),
            batch: settings.batch,
            keys: vec![0; settings.steps * step_keys],
            step_keys,
            out: vec![0.25; step_keys * settings.dim()],
        };
        batches.draw();
        batches
    }

    /// Draw the ids of the next round.
    pub(crate) fn draw(&mut self) {
        let tables = self.sources.len();
        for (number, keys) in self.keys.chunks_mut(self.batch).enumerate() {
            let table = number % tables;
            match &mut self.sources[table] {
                Source::Uniform(source) => source.fill(keys),
                Source::Zipf(source) => source.fill(keys),
            }
            for id in keys {
                *id = key(table as u64, *id);
            }
        }
    }

    /// The keys of a step, table by table, and a buffer for their weights.
    pub(crate) fn step(&mut self, step: usize) -> (&[u64], &mut [f32]) {
        (&self.keys[step * self.step_keys..][..self.step_keys], &mut self.out)
    }
}

/// The store and tables that the loop trains.
struct Trainer {
    store: Arc<Store>,
    tables: Vec<Table>,
    gradients: Vec<f32>,
    /// One bag per lookup.
    offsets: Vec<i64>,
}

impl Trainer {
    fn new(settings: &Settings, folder: &Path) -> Result<Self, Failure> {
        let store = stores::create_store(settings, folder)?;
        let spec = stores::spec(settings, StalenessBound::Steps(0));
        let tables = (0..settings.tables)
            .map(|number| {
                let table = store.table(&format!("table-{number}"), &spec)?;
                stores::load(&table, settings.rows)?;
                Ok(table)
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        store.checkpoint(&[])?;
        Ok(Self {
            store,
            tables,
            gradients: vec![0.0; settings.tables as usize * settings.batch * settings.dim()],
            offsets: (0..=settings.batch as i64).collect(),
        })
    }

    /// Run the steps of a round, each announced before it begins. Returns the number of rows looked up.
    fn round(&mut self, settings: &Settings, batches: &mut Batches, lookahead: bool) -> Result<u64, Failure> {
        let width = settings.tables as usize * settings.dim();
        let rates = vec![settings.optimizer.spec().lr(); self.tables.len()];
        let mut rows = 0;
        let mut announced = 0;
        for step in 0..settings.steps {
            while lookahead && announced < settings.steps.min(step + lookahead_steps(settings)) {
                if announced > step {
                    let ids = ids_of(batches.step(announced).0, settings.batch);
                    let ids: Vec<_> =
                        self.tables.iter().zip(&ids).map(|(table, ids)| (table, &ids[..])).collect();
                    let steps = (announced - step + 1) as u64;
                    self.store.lookahead(&ids, Destination::Buffer { steps })?;
                }
                announced += 1;
            }
            let (keys, out) = batches.step(step);
            let ids = ids_of(keys, settings.batch);
            let bags: Vec<_> =
                self.tables.iter().zip(&ids).map(|(table, ids)| (table, self.bag(ids))).collect();
            let ticket = self.store.ticket()?;
            let lookup = self.store.lookup(&bags, out, width, Some(&ticket))?;
            self.gradients.iter_mut().zip(&*out).for_each(|(gradient, weight)| *gradient = GRADIENT * weight);
            self.store.apply(&lookup, &self.gradients, width, &rates, Some(&ticket))?;
            rows += keys.len() as u64;
        }
        Ok(rows)
    }

    fn bag<'a>(&'a self, ids: &'a [u64]) -> IdBag<'a> {
        IdBag { ids, offsets: &self.offsets, weights: None, padding: None, pooling: Pooling::Sum }
    }
}

/// The ids of each table among the keys of a step.
fn ids_of(keys: &[u64], batch: usize) -> Vec<Vec<u64>> {
    let ids = |keys: &[u64]| keys.iter().map(|key| key & ((1 << ID_BITS) - 1)).collect();
    keys.chunks(batch).map(ids).collect()
}

/// The loop over the store with lookahead, without lookahead, and with memory for all rows; and over the
/// peers.
pub(crate) fn run(settings: &Settings) -> Result<(), Failure> {
    let folder = settings.folder.join("training");
    let mut trainer = Trainer::new(settings, &folder)?;
    let all = Settings { memory: settings.memory * 8, ..settings.clone() };
    let mut in_memory = Trainer::new(&all, &settings.folder.join("training-in-memory"))?;
    let mut batches = Batches::new(settings);
    let mut peers = Peer::start_all(settings, Work::Train)?;
    warm_up(settings.warm_up, || {
        let before = trainer.store.stats().device_blocks_read;
        batches.draw();
        let rows = trainer.round(settings, &mut batches, true)?;
        Ok((trainer.store.stats().device_blocks_read - before) as f64 / rows as f64)
    })?;
    for peer in &mut peers {
        peer.warm_up(settings)?;
    }
    let threads = settings.threads;
    for round in 0..settings.rounds {
        probe(settings, &folder, round)?;
        for (engine, lookahead) in [("rowmill", true), ("rowmill_no_lookahead", false)] {
            batches.draw();
            let before = trainer.store.stats();
            let mut done = Ok(0);
            let mut line = sample(engine, threads, round, || {
                done = trainer.round(settings, &mut batches, lookahead);
                *done.as_ref().unwrap_or(&0)
            });
            done?;
            line.settle_s = stores::settle(&trainer.store)?.as_secs_f64();
            print(&line);
            let after = trainer.store.stats();
            if lookahead {
                let by_steps = after.cold_reads - before.cold_reads;
                print(&Reads {
                    round,
                    steps: settings.steps,
                    rows_read: by_steps + after.lookahead_loaded - before.lookahead_loaded,
                    by_steps,
                    lookahead_late: after.lookahead_late - before.lookahead_late,
                    lookahead_dropped: after.lookahead_dropped - before.lookahead_dropped,
                });
            }
        }
        batches.draw();
        let mut done = Ok(0);
        print(&sample("rowmill_in_memory", threads, round, || {
            done = in_memory.round(&all, &mut batches, false);
            *done.as_ref().unwrap_or(&0)
        }));
        done?;
        for peer in &mut peers {
            peer.rounds(settings, round)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_a_batch_of_every_table() {
        let line = "training --rows 100 --tables 3 --batch 5 --steps 2 --zipf 1.05";
        let settings = Settings::parse(line.split_whitespace().map(str::to_owned)).unwrap();
        let mut batches = Batches::new(&settings);
        let first = batches.step(0).0.to_vec();
        assert_eq!(
            first.iter().map(|key| key >> ID_BITS).collect::<Vec<_>>(),
            [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]
        );
        let ids = ids_of(&first, 5);
        assert!(ids.len() == 3 && ids.iter().flatten().all(|id| *id < 100), "{ids:?}");
        assert_eq!(batches.step(0).1.len(), 15 * settings.dim());
        assert_ne!(batches.step(1).0, first);
        batches.draw();
        assert_ne!(batches.step(0).0, first);
    }
}
