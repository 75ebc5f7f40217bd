//! Threads that perform all operations of a store on few rows, with memory too small for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rowmill_store::*;
use rowmill_testkit::Rng64;

use crate::operation::{self, Content, DIM, Effect, Operation, Thread, WRITERS};
use crate::recorder::{Order, Recorder};

/// Staleness bounds of the tables: the first table keeps no clocks.
pub(crate) const BOUNDS: [Option<u8>; 3] = [None, Some(0), Some(2)];
/// The first rows of each table get three quarters of the operations.
const HOT: u64 = 34;
/// Pause of the thread that makes checkpoints.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum rows of one call.
const BATCH_MAX: u64 = 6;

/// Number of operations, rows and threads, and the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) seed: u64,
    /// Operations on single rows, without checkpoints.
    pub(crate) operations: usize,
    pub(crate) checkpoints: usize,
    /// Rows of each table.
    pub(crate) rows: u64,
    /// Bytes for rows in memory and the log's buffers.
    pub(crate) row_memory: u64,
    /// Threads that share the work of a call.
    pub(crate) threads: usize,
}

/// What threads did, and the metrics of the store.
pub(crate) struct Done {
    pub(crate) operations: Vec<Operation>,
    pub(crate) stats: Stats,
    /// Rows that steps read again.
    pub(crate) read_again: u64,
}

impl Workload {
    /// Table of a row, by the number of the row over all tables.
    pub(crate) fn table_of(&self, row: u32) -> usize {
        row as usize / self.rows as usize
    }

    pub(crate) fn is_hot(&self, row: u32) -> bool {
        u64::from(row) % self.rows < HOT
    }

    pub(crate) fn run(&self) -> Done {
        let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new());
        let options = StoreOptions {
            memory: 32 << 20,
            row_memory: Some(self.row_memory),
            threads: self.threads,
            spread_rows_min: 1,
            // Never reached unless a step waits forever.
            wait_deadline: Duration::from_mins(5),
            ..StoreOptions::default()
        };
        let store = Store::open_volume(Arc::clone(&volume), options.clone()).unwrap();
        let tables: Vec<Table> =
            (0..).zip(BOUNDS).map(|(number, bound)| table(&store, number, bound)).collect();
        let (order, left) = (Order::default(), AtomicUsize::new(self.operations));
        let read_again = AtomicU64::new(0);
        let operations = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let worker = Worker {
                        workload: self,
                        store: &store,
                        tables: &tables,
                        left: &left,
                        read_again: &read_again,
                        recorder: Recorder::new(Thread::Writer(number as u8), &order),
                        rng: Rng64::new(self.seed * WRITERS as u64 + number as u64),
                        writer: number,
                        puts: 0,
                        additions: vec![0; BOUNDS.len() * self.rows as usize],
                    };
                    scope.spawn(move || worker.work())
                })
                .collect();
            let recorder = Recorder::new(Thread::Saver, &order);
            let saver = Saver { workload: self, volume, options, left: &left, recorder };
            let saved = saver.save(&store);
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).chain(saved).collect()
        });
        Done { operations, stats: store.stats(), read_again: read_again.into_inner() }
    }
}

fn table(store: &Arc<Store>, number: usize, bound: Option<u8>) -> Table {
    let spec = TableSpec {
        dim: DIM as u32,
        dtype: Dtype::F32,
        optimizer: OptimizerSpec::Sgd { lr: 1.0 },
        initializer: Initializer::Zeros,
        staleness: bound.map_or(StalenessBound::Infinite, StalenessBound::Steps),
        ids: IdRange::Sparse,
        eviction: None,
        admission: None,
    };
    store.table(&format!("table {number}"), &spec).unwrap()
}

/// Some rows of one table.
struct Rows {
    /// Number of the table's first row, counted over all tables.
    first: u64,
    table: usize,
    ids: Vec<u64>,
}

impl Rows {
    fn number(&self, position: usize) -> u32 {
        (self.first + self.ids[position]) as u32
    }

    /// One effect per row.
    fn each(&self, mut effect: impl FnMut(usize) -> Effect) -> Vec<(u32, Effect)> {
        (0..self.ids.len()).map(|position| (self.number(position), effect(position))).collect()
    }

    /// One effect per row, from the content that was read.
    fn seen(&self, weights: &[f32], effect: impl Fn(Content) -> Effect) -> Vec<(u32, Effect)> {
        self.each(|position| effect(Content::from_weights(&weights[position * DIM..][..DIM])))
    }

    fn weights(&self) -> Vec<f32> {
        vec![0.0; self.ids.len() * DIM]
    }
}

/// A training step between its get and its change.
struct Step {
    number: operation::Step,
    ticket: Arc<Ticket>,
    rows: Rows,
    lookup: Option<Lookup>,
}

struct Worker<'a> {
    workload: &'a Workload,
    store: &'a Arc<Store>,
    tables: &'a [Table],
    /// Operations left to do, over all workers.
    left: &'a AtomicUsize,
    read_again: &'a AtomicU64,
    recorder: Recorder<'a>,
    rng: Rng64,
    writer: usize,
    puts: u32,
    /// Additions so far, by row.
    additions: Vec<u32>,
}

impl Worker<'_> {
    fn work(mut self) -> Vec<Operation> {
        let mut told = 0;
        while self.left.load(SeqCst) > 0 {
            match self.rng.below(20) {
                0..4 => self.get(),
                4 => self.pooled_get(),
                5..7 => {
                    let rows = self.rows(None);
                    self.put(&rows, None);
                }
                7..10 => {
                    let rows = self.rows(None);
                    self.add(&rows, None);
                }
                10 => self.fetch_without_step(),
                11 => self.contains(),
                12..14 => self.delete(),
                14 => self.look_ahead(),
                15..18 => self.step(),
                _ => self.two_steps(),
            }
            let done = self.recorder.operations.len();
            let _ = self.left.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(done - told)));
            told = done;
        }
        self.recorder.operations
    }

    /// Distinct rows, mostly hot ones; of a table with clocks if `bounded`.
    fn rows(&mut self, bounded: Option<bool>) -> Rows {
        let table = match bounded {
            None => self.rng.below(BOUNDS.len() as u64),
            Some(false) => 0,
            Some(true) => 1 + self.rng.below(BOUNDS.len() as u64 - 1),
        };
        let count = 1 + self.rng.below(BATCH_MAX) as usize;
        let mut ids = Vec::new();
        while ids.len() < count {
            let range = if self.rng.one_in(4) { self.workload.rows } else { HOT };
            let id = self.rng.below(range);
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        Rows { first: table * self.workload.rows, table: table as usize, ids }
    }

    fn get(&mut self) {
        let rows = self.rows(None);
        let mut weights = rows.weights();
        let begun = self.recorder.begin();
        self.tables[rows.table].get(&rows.ids, &mut weights).unwrap();
        self.recorder.end(begun, rows.seen(&weights, Effect::Get));
    }

    /// A lookup like that of evaluation, with each row as one bag.
    fn pooled_get(&mut self) {
        let rows = self.rows(None);
        let mut weights = rows.weights();
        let begun = self.recorder.begin();
        self.look_up(&rows, &mut weights, None).unwrap();
        self.recorder.end(begun, rows.seen(&weights, Effect::Get));
    }

    fn look_up(
        &self,
        rows: &Rows,
        weights: &mut [f32],
        ticket: Option<&Ticket>,
    ) -> Result<Lookup, StoreError> {
        let offsets: Vec<i64> = (0..=rows.ids.len() as i64).collect();
        let bag =
            IdBag { ids: &rows.ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum };
        self.store.lookup(&[(&self.tables[rows.table], bag)], weights, DIM, ticket)
    }

    fn put(&mut self, rows: &Rows, step: Option<(operation::Step, &Ticket)>) {
        let first = self.puts;
        self.puts += rows.ids.len() as u32;
        let number = |position: usize| (first + position as u32) * WRITERS as u32 + self.writer as u32 + 1;
        let weights: Vec<f32> =
            (0..rows.ids.len()).flat_map(|position| Content::of_put(number(position)).to_weights()).collect();
        let begun = self.recorder.begin();
        let (step, ticket) = step.unzip();
        self.tables[rows.table].put(&rows.ids, &weights, ticket).unwrap();
        let effects = rows.each(|position| Effect::Put { put: number(position), step });
        self.recorder.end(begun, effects);
    }

    /// Gradients that add to each row, and their effects.
    fn additions(&mut self, rows: &Rows, step: Option<operation::Step>) -> (Vec<f32>, Vec<(u32, Effect)>) {
        let mut gradients = Vec::new();
        let writer = self.writer;
        let effects = rows.each(|position| {
            let number = &mut self.additions[rows.number(position) as usize];
            *number += 1;
            // The learning rate is 1.
            gradients.extend(Content::default().plus(writer, *number).to_weights().map(|weight| -weight));
            Effect::Add { writer: writer as u8, number: *number, step }
        });
        (gradients, effects)
    }

    fn add(&mut self, rows: &Rows, step: Option<(operation::Step, &Ticket)>) {
        let (step, ticket) = step.unzip();
        let (gradients, effects) = self.additions(rows, step);
        let begun = self.recorder.begin();
        self.tables[rows.table].rmw(&rows.ids, &gradients, None, ticket).unwrap();
        self.recorder.end(begun, effects);
    }

    fn fetch_without_step(&mut self) {
        let rows = self.rows(Some(false));
        let mut weights = rows.weights();
        let begun = self.recorder.begin();
        self.tables[rows.table].get_or_init(&rows.ids, &mut weights, None).unwrap();
        let step = operation::Step::of(self.writer, false);
        self.recorder.end(begun, rows.seen(&weights, |seen| Effect::Fetch { seen, step }));
    }

    fn contains(&mut self) {
        let rows = self.rows(None);
        let begun = self.recorder.begin();
        let found = self.tables[rows.table].contains(&rows.ids).unwrap();
        self.recorder.end(begun, rows.each(|position| Effect::Contains(found[position])));
    }

    fn delete(&mut self) {
        let mut rows = self.rows(None);
        rows.ids.truncate(1);
        let begun = self.recorder.begin();
        let deleted = self.tables[rows.table].delete(&rows.ids).unwrap();
        self.recorder.end(begun, rows.each(|_| Effect::Delete(deleted == 1)));
    }

    fn look_ahead(&mut self) {
        let rows = self.rows(None);
        let destination =
            if self.rng.one_in(2) { Destination::Cache } else { Destination::Buffer { steps: 1 } };
        self.tables[rows.table].lookahead(&rows.ids, destination).unwrap();
    }

    /// The get of a training step, by a random kind of call. `None` if it gave way to another step.
    fn begin_step(&mut self) -> Option<Step> {
        let number = operation::Step::of(self.writer, false);
        let (ticket, rows) = (Arc::new(self.store.ticket().unwrap()), self.rows(Some(true)));
        let mut step = Step { number, ticket, rows, lookup: None };
        let mut result = self.read(&mut step);
        if result.is_ok() && self.rng.one_in(4) {
            std::thread::yield_now();
            self.read_again.fetch_add(step.rows.ids.len() as u64, SeqCst);
            result = self.read(&mut step);
        }
        if result.is_err() {
            self.drop_step(step);
            return None;
        }
        Some(step)
    }

    /// Read the rows of a step.
    fn read(&mut self, step: &mut Step) -> Result<(), StoreError> {
        let Step { number, ticket, rows, lookup } = step;
        let mut weights = rows.weights();
        let begun = self.recorder.begin();
        let result = if self.rng.one_in(2) {
            self.look_up(rows, &mut weights, Some(ticket)).map(|made| *lookup = Some(made))
        } else {
            self.tables[rows.table].get_or_init(&rows.ids, &mut weights, Some(ticket))
        };
        let effects = match &result {
            Ok(()) => rows.seen(&weights, |seen| Effect::Fetch { seen, step: *number }),
            Err(StoreError::StepConflict { .. }) => rows.each(|_| Effect::GaveWay),
            Err(error) => panic!("{error}"),
        };
        self.recorder.end(begun, effects);
        result
    }

    /// End a step without a change.
    fn drop_step(&mut self, step: Step) {
        let Step { number, ticket, rows, .. } = step;
        let begun = self.recorder.begin();
        drop(ticket);
        self.recorder.end(begun, rows.each(|_| Effect::Release(number)));
    }

    /// The change of a training step, by a random kind of call.
    fn end_step(&mut self, step: Step) {
        if self.rng.one_in(4) {
            std::thread::yield_now();
        }
        let way = self.rng.below(8);
        if way == 0 {
            return self.drop_step(step);
        }
        let Step { number, ticket, rows, lookup } = step;
        match lookup {
            Some(lookup) if way > 2 => {
                let (gradients, effects) = self.additions(&rows, Some(number));
                let begun = self.recorder.begin();
                self.store.apply(&lookup, &gradients, DIM, &[1.0], Some(&ticket)).unwrap();
                self.recorder.end(begun, effects);
            }
            None if way > 2 => self.add(&rows, Some((number, &ticket))),
            _ => self.put(&rows, Some((number, &ticket))),
        }
    }

    fn step(&mut self) {
        if let Some(step) = self.begin_step() {
            self.end_step(step);
        }
    }

    /// A step whose get waits in the queue while this worker still owes the change of another step.
    fn two_steps(&mut self) {
        let Some(first) = self.begin_step() else { return };
        let number = operation::Step::of(self.writer, true);
        let rows = self.rows(Some(true));
        let ticket = Arc::new(self.store.ticket().unwrap());
        let begun = self.recorder.begin();
        let later = self.tables[rows.table].get_later(&rows.ids, &ticket).unwrap();
        self.end_step(first);
        let weights = later.wait().unwrap();
        self.recorder.end(begun, rows.seen(&weights, |seen| Effect::Fetch { seen, step: number }));
        self.end_step(Step { number, ticket, rows, lookup: None });
    }
}

/// Makes checkpoints and records what they hold of every row.
struct Saver<'a> {
    workload: &'a Workload,
    volume: Arc<dyn Volume>,
    options: StoreOptions,
    /// Operations left to do, over all workers.
    left: &'a AtomicUsize,
    recorder: Recorder<'a>,
}

impl Saver<'_> {
    /// Make checkpoints, spread over the work.
    fn save(mut self, store: &Arc<Store>) -> Vec<Operation> {
        let Workload { operations, checkpoints, .. } = *self.workload;
        for number in 0..checkpoints {
            while self.left.load(SeqCst) > operations - operations * number / checkpoints {
                std::thread::sleep(PAUSE);
            }
            let begun = self.recorder.begin();
            store.checkpoint(&[]).unwrap();
            let ended = self.recorder.begin();
            let first = self.recorder.operations.len();
            self.read(begun);
            // The time for reading the checkpoint does not count.
            self.recorder.operations[first..].iter_mut().for_each(|operation| operation.ended = ended);
        }
        self.recorder.operations
    }

    fn read(&mut self, begun: u64) {
        let options = StoreOptions { read_only: true, ..self.options.clone() };
        let saved = Store::open_volume(Arc::clone(&self.volume), options).unwrap();
        for table in 0..BOUNDS.len() {
            let count = self.workload.rows;
            let rows = Rows { first: table as u64 * count, table, ids: (0..count).collect() };
            let stored = saved.open_table(&format!("table {table}")).unwrap();
            let mut weights = rows.weights();
            stored.get(&rows.ids, &mut weights).unwrap();
            let exists = stored.contains(&rows.ids).unwrap();
            let content = |position: usize| Content::from_weights(&weights[position * DIM..][..DIM]);
            let effect = |position| Effect::Saved { content: content(position), exists: exists[position] };
            self.recorder.end(begun, rows.each(effect));
        }
    }
}
