//! Random calls on a store, repeated on a plain map.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rowmill_store::Dtype::{Bf16, F32, SplitBf16};
use rowmill_store::*;
use rowmill_testkit::Rng64;

/// The rows and the memory of one case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    dim: u32,
    dtype: Dtype,
    optimizer: OptimizerSpec,
    row_memory: u64,
    /// Ids are below this.
    universe: u64,
    batch: usize,
}

/// 64 B rows in 32 KiB (two layouts), wide rows that do not straddle blocks, rows of one block, rows of two;
/// every optimizer; bf16 weights with and without padding before the state, and split-bf16 weights.
pub(crate) const SHAPES: [Shape; 17] = [
    Shape { dim: 16, dtype: F32, optimizer: SGD, row_memory: 96 << 10, universe: 3000, batch: 400 },
    Shape { dim: 8, dtype: F32, optimizer: ADAGRAD, row_memory: 112 << 10, universe: 3000, batch: 400 },
    Shape { dim: 100, dtype: F32, optimizer: ADAGRAD, row_memory: 128 << 10, universe: 400, batch: 60 },
    Shape { dim: 1024, dtype: F32, optimizer: SGD, row_memory: 256 << 10, universe: 120, batch: 24 },
    Shape { dim: 1500, dtype: F32, optimizer: SGD, row_memory: 384 << 10, universe: 100, batch: 24 },
    Shape { dim: 8, dtype: F32, optimizer: MOMENTUM_SGD, row_memory: 112 << 10, universe: 3000, batch: 400 },
    Shape {
        dim: 11,
        dtype: F32,
        optimizer: ROWWISE_ADAGRAD,
        row_memory: 96 << 10,
        universe: 3000,
        batch: 400,
    },
    Shape { dim: 5, dtype: F32, optimizer: ADAM, row_memory: 112 << 10, universe: 3000, batch: 400 },
    Shape { dim: 20, dtype: F32, optimizer: FTRL, row_memory: 128 << 10, universe: 2000, batch: 250 },
    Shape { dim: 7, dtype: F32, optimizer: ROWWISE_ADAM, row_memory: 112 << 10, universe: 3000, batch: 400 },
    Shape { dim: 32, dtype: Bf16, optimizer: SGD, row_memory: 96 << 10, universe: 3000, batch: 400 },
    Shape { dim: 9, dtype: Bf16, optimizer: ADAGRAD, row_memory: 96 << 10, universe: 3000, batch: 400 },
    Shape { dim: 7, dtype: Bf16, optimizer: ROWWISE_ADAM, row_memory: 96 << 10, universe: 3000, batch: 400 },
    Shape {
        dim: 8,
        dtype: SplitBf16,
        optimizer: ROWWISE_ADAGRAD,
        row_memory: 112 << 10,
        universe: 3000,
        batch: 400,
    },
    Shape { dim: 7, dtype: SplitBf16, optimizer: ADAM, row_memory: 112 << 10, universe: 3000, batch: 400 },
    Shape { dim: 1500, dtype: SplitBf16, optimizer: SGD, row_memory: 384 << 10, universe: 100, batch: 24 },
    Shape { dim: 3000, dtype: Bf16, optimizer: SGD, row_memory: 384 << 10, universe: 100, batch: 24 },
];

/// One call. Ids and values are drawn from the seed.
#[derive(Clone, Debug)]
enum Call {
    Get,
    GetOrInit { ticket: bool },
    Put { ticket: bool },
    PutState,
    Rmw { ticket: bool },
    Delete,
    Contains,
    Scan,
    Lookahead(Destination),
    Lookup { ticket: bool, apply: bool },
    Checkpoint,
    Reopen,
    ReadOnly,
}

#[derive(Clone, Debug)]
struct Step {
    call: Call,
    /// Which of the two tables.
    table: usize,
    seed: u64,
}

fn destinations() -> impl Strategy<Value = Destination> {
    prop_oneof![(1..6_u64).prop_map(|steps| Destination::Buffer { steps }), Just(Destination::Cache)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let call = prop_oneof![
        4 => Just(Call::Get),
        4 => any::<bool>().prop_map(|ticket| Call::GetOrInit { ticket }),
        4 => any::<bool>().prop_map(|ticket| Call::Put { ticket }),
        1 => Just(Call::PutState),
        8 => any::<bool>().prop_map(|ticket| Call::Rmw { ticket }),
        3 => Just(Call::Delete),
        1 => Just(Call::Contains),
        1 => Just(Call::Scan),
        2 => destinations().prop_map(Call::Lookahead),
        8 => (any::<bool>(), any::<bool>()).prop_map(|(ticket, apply)| Call::Lookup { ticket, apply }),
        2 => Just(Call::Checkpoint),
        1 => Just(Call::Reopen),
        1 => Just(Call::ReadOnly),
    ];
    let step = (call, 0..2_usize, any::<u64>()).prop_map(|(call, table, seed)| Step { call, table, seed });
    prop::collection::vec(step, 20..60)
}

/// Counts over all cases.
#[derive(Default)]
struct Seen {
    evictions: AtomicU64,
    cold_reads: AtomicU64,
    compactions: AtomicU64,
    checkpoints: AtomicU64,
    lookahead_loaded: AtomicU64,
}

impl Seen {
    fn add(&self, stats: &Stats) {
        self.evictions.fetch_add(stats.evictions, Relaxed);
        self.cold_reads.fetch_add(stats.cold_reads, Relaxed);
        self.compactions.fetch_add(stats.compactions, Relaxed);
        self.checkpoints.fetch_add(stats.checkpoints, Relaxed);
        self.lookahead_loaded.fetch_add(stats.lookahead_loaded, Relaxed);
    }
}

/// A store and its expected content.
struct Case<'a> {
    shape: Shape,
    options: StoreOptions,
    volume: Arc<dyn Volume>,
    store: Arc<Store>,
    tables: Vec<Table>,
    models: Vec<Model>,
    /// The models at the last checkpoint, and its attachment.
    saved: Option<(Vec<Model>, Vec<u8>)>,
    seen: &'a Seen,
}

fn open_on(volume: &Arc<dyn Volume>, options: &StoreOptions) -> Arc<Store> {
    Store::open_volume(Arc::clone(volume), options.clone()).unwrap()
}

fn specs(shape: &Shape) -> [TableSpec; 2] {
    let first = TableSpec { dtype: shape.dtype, ..spec(shape.dim, shape.optimizer) };
    let ids = IdRange::Dense { rows: shape.universe };
    [first, TableSpec { staleness: StalenessBound::Infinite, ids, ..first }]
}

fn models(shape: &Shape) -> Vec<Model> {
    specs(shape).into_iter().enumerate().map(|(category, spec)| Model::new(spec, category as u32)).collect()
}

fn tables(store: &Arc<Store>, shape: &Shape) -> Vec<Table> {
    specs(shape).iter().zip(["a", "b"]).map(|(spec, name)| store.table(name, spec).unwrap()).collect()
}

impl<'a> Case<'a> {
    fn new(shape: Shape, threads: usize, volume: Arc<dyn Volume>, seen: &'a Seen) -> Self {
        let options = spread(&options(Some(shape.row_memory)), threads);
        let store = open_on(&volume, &options);
        let tables = tables(&store, &shape);
        Self { shape, options, volume, store, tables, models: models(&shape), saved: None, seen }
    }

    fn ids(&self, table: usize, rng: &mut Rng64) -> Vec<u64> {
        let count = rng.below(self.shape.batch as u64) as usize;
        // Half of the batches use a part of the ids only, so that some rows are hotter than others.
        let universe = if rng.one_in(2) { self.shape.universe } else { self.shape.universe / 8 };
        let id = |rng: &mut Rng64| {
            let id = rng.below(universe);
            if table == 0 { id.wrapping_mul(0x9E37_79B9_7F4A_7C15) } else { id }
        };
        (0..count).map(|_| id(rng)).collect()
    }

    fn run(&mut self, step: &Step) {
        let mut rng = Rng64::new(step.seed);
        let rng = &mut rng;
        let which = step.table;
        let ids = self.ids(which, rng);
        let width = ids.len() * self.shape.dim as usize;
        let table = self.tables[which].clone();
        match step.call {
            Call::Get => {
                let mut found = vec![0.0; width];
                table.get(&ids, &mut found).unwrap();
                self.compare(which, &ids, &found);
            }
            Call::GetOrInit { ticket } => {
                let ticket = ticket.then(|| self.store.ticket().unwrap());
                self.get_or_init(which, &ids, ticket.as_ref());
            }
            Call::Put { ticket } => {
                let ticket = ticket.then(|| self.store.ticket().unwrap());
                if ticket.is_some() {
                    self.get_or_init(which, &ids, ticket.as_ref());
                }
                let values = gradients(rng, width);
                table.put(&ids, &values, ticket.as_ref()).unwrap();
                self.models[which].put(&ids, &values);
                assert_eq!(ticket.map_or(0, |ticket| ticket.rows_held()), 0);
            }
            Call::PutState => {
                if table.state_floats() > 0 {
                    let count = ids.len() * table.state_floats();
                    let values: Vec<f32> =
                        gradients(rng, count).iter().map(|value| value.abs() + 0.5).collect();
                    table.put_state(&ids, &values).unwrap();
                    self.models[which].put_state(&ids, &values);
                }
            }
            Call::Rmw { ticket } => {
                let ticket = ticket.then(|| self.store.ticket().unwrap());
                if ticket.is_some() {
                    self.get_or_init(which, &ids, ticket.as_ref());
                }
                let values = gradients(rng, width);
                table.rmw(&ids, &values, Some(0.25), ticket.as_ref()).unwrap();
                if !ids.is_empty() {
                    self.models[which].rmw(&ids, &values, 0.25);
                }
                assert_eq!(ticket.map_or(0, |ticket| ticket.rows_held()), 0);
            }
            Call::Delete => {
                let deleted = table.delete(&ids).unwrap();
                let expected = ids.iter().filter(|id| self.models[which].rows.remove(id).is_some()).count();
                assert_eq!(deleted, expected);
            }
            Call::Contains => {
                let found = table.contains(&ids).unwrap();
                let expected: Vec<bool> =
                    ids.iter().map(|id| self.models[which].rows.contains_key(id)).collect();
                assert_eq!(found, expected);
            }
            Call::Scan => self.scan(which),
            Call::Lookahead(destination) => {
                table.lookahead(&ids, destination).unwrap();
                if rng.one_in(2) {
                    let mut found = vec![0.0; width];
                    table.get(&ids, &mut found).unwrap();
                    self.compare(which, &ids, &found);
                }
            }
            Call::Lookup { ticket, apply } => self.lookup(rng, ticket, apply),
            Call::Checkpoint => {
                let bytes = step.seed.to_le_bytes();
                self.store.checkpoint(&[("seed", &bytes)]).unwrap();
                self.saved = Some((self.models.clone(), bytes.to_vec()));
            }
            Call::Reopen => self.reopen(),
            Call::ReadOnly => self.read_only(),
        }
    }

    fn compare(&self, which: usize, ids: &[u64], found: &[f32]) {
        let model = &self.models[which];
        for (id, found) in ids.iter().zip(found.chunks(model.dim())) {
            near(found, &model.read(*id).weights, 0.0, || format!("row {id} of table {which}"));
        }
    }

    fn get_or_init(&mut self, which: usize, ids: &[u64], ticket: Option<&Ticket>) {
        let mut found = vec![0.0; ids.len() * self.shape.dim as usize];
        self.tables[which].get_or_init(ids, &mut found, ticket).unwrap();
        for &id in ids {
            self.models[which].row(id);
        }
        self.compare(which, ids, &found);
        let distinct: std::collections::HashSet<u64> = ids.iter().copied().collect();
        // The second table keeps no clocks.
        let held = if which == 0 { distinct.len() } else { 0 };
        assert_eq!(ticket.map_or(held, Ticket::rows_held), held);
    }

    fn scan(&self, which: usize) {
        let model = &self.models[which];
        let mut found: HashMap<u64, Vec<f32>> = HashMap::new();
        let mut visit = |ids: &[u64], weights: &[f32]| {
            for (id, weights) in ids.iter().zip(weights.chunks(model.dim())) {
                assert!(found.insert(*id, weights.to_vec()).is_none(), "row {id} is visited twice");
            }
            true
        };
        self.tables[which].scan(37, &mut visit).unwrap();
        assert_eq!(found.len(), model.rows.len());
        for (id, found) in found {
            near(&found, &model.rows[&id].weights, 0.0, || format!("row {id} of a scan"));
        }
    }

    /// Three features over the two tables in one call: weighted sum, mean with padding, sum.
    fn lookup(&mut self, rng: &mut Rng64, training: bool, apply: bool) {
        const PADDING: u64 = 3;
        let bags = 1 + rng.below(12) as usize;
        let dim = self.shape.dim as usize;
        let mut features = Vec::new();
        for (which, pooling) in [(0, Pooling::Sum), (1, Pooling::Mean), (0, Pooling::Sum)] {
            let (mut ids, mut offsets) = (Vec::new(), vec![0_i64]);
            for _ in 0..bags {
                // Means divide by powers of two, so they are exact.
                let mut bag: Vec<u64> =
                    self.ids(which, rng).into_iter().filter(|&id| id != PADDING).collect();
                bag.truncate([0, 1, 2, 4][rng.below(4) as usize]);
                bag.truncate(if bag.len() == 3 { 2 } else { 4 });
                if which == 1 {
                    for _ in 0..rng.below(3) {
                        bag.insert(rng.below(bag.len() as u64 + 1) as usize, PADDING);
                    }
                }
                ids.extend(bag);
                offsets.push(ids.len() as i64);
            }
            let weights: Option<Vec<f32>> =
                features.is_empty().then(|| ids.iter().map(|_| rng.below(8) as f32 / 4.0 - 1.0).collect());
            features.push((which, pooling, ids, offsets, weights));
        }
        let call: Vec<(&Table, IdBag<'_>)> = features
            .iter()
            .map(|(which, pooling, ids, offsets, weights)| {
                let padding = (*which == 1).then_some(PADDING);
                let weights = weights.as_deref();
                (&self.tables[*which], IdBag { ids, offsets, weights, padding, pooling: *pooling })
            })
            .collect();
        let stride = 3 * dim + rng.below(5) as usize;
        let ticket = training.then(|| self.store.ticket().unwrap());
        let mut out = vec![f32::MAX; bags * stride];
        let lookup = self.store.lookup(&call, &mut out, stride, ticket.as_ref()).unwrap();
        if !training {
            let mut evaluated = vec![f32::MAX; bags * stride];
            self.store.evaluate(&call, &mut evaluated, stride, None).unwrap();
            assert_eq!(evaluated, out);
        }

        let values = gradients(rng, bags * stride);
        let mut by_table: [Vec<(u64, Vec<f32>)>; 2] = [Vec::new(), Vec::new()];
        for (column, (which, pooling, ids, offsets, weights)) in features.iter().enumerate() {
            for bag in 0..bags {
                let range = offsets[bag] as usize..offsets[bag + 1] as usize;
                let used: Vec<usize> = range.filter(|&at| *which == 0 || ids[at] != PADDING).collect();
                let factor = |at: usize| match pooling {
                    Pooling::Sum => weights.as_ref().map_or(1.0, |weights| weights[at]),
                    Pooling::Mean => 1.0 / used.len() as f32,
                };
                let place = bag * stride + column * dim;
                let mut expected = vec![0.0; dim];
                for &at in &used {
                    if training {
                        self.models[*which].row(ids[at]);
                    }
                    let row = self.models[*which].looked_up(ids[at]);
                    expected.iter_mut().zip(row).for_each(|(sum, weight)| *sum += factor(at) * weight);
                    let gradient =
                        values[place..place + dim].iter().map(|value| value * factor(at)).collect();
                    by_table[*which].push((ids[at], gradient));
                }
                near(&out[place..place + dim], &expected, 1e-5, || format!("bag {bag} of feature {column}"));
            }
        }
        assert!(out.chunks(stride).all(|row| row[3 * dim..].iter().all(|&value| value == f32::MAX)));
        if apply {
            self.store.apply(&lookup, &values, stride, &[0.5, 0.125, 0.5], ticket.as_ref()).unwrap();
            let [first, second] = by_table;
            self.models[0].step(0.5, first);
            self.models[1].step(0.125, second);
            assert_eq!(ticket.map_or(0, |ticket| ticket.rows_held()), 0);
        }
    }

    fn reopen(&mut self) {
        self.seen.add(&self.store.stats());
        self.tables.clear();
        self.store.close();
        self.store = open_on(&self.volume, &self.options);
        self.models = self.saved.as_ref().map_or_else(|| models(&self.shape), |(models, _)| models.clone());
        if let Some((_, bytes)) = &self.saved {
            assert_eq!(self.store.attachment("seed").unwrap().as_ref(), Some(bytes));
        }
        self.tables = tables(&self.store, &self.shape);
        self.check();
    }

    /// A reader beside the writer sees the last checkpoint and cannot change anything.
    fn read_only(&self) {
        let Some((saved, _)) = &self.saved else { return };
        let options = StoreOptions { read_only: true, ..self.options.clone() };
        let store = open_on(&self.volume, &options);
        for (name, model) in ["a", "b"].iter().zip(saved) {
            let table = store.open_table(name).unwrap();
            model.check(&table);
            assert!(matches!(
                table.rmw(&[1], &vec![0.0; model.dim()], None, None),
                Err(StoreError::ReadOnly { .. })
            ));
        }
    }

    fn check(&self) {
        for (model, table) in self.models.iter().zip(&self.tables) {
            model.check(table);
        }
        for which in 0..2 {
            self.scan(which);
        }
    }
}

/// Compare stores with a map on these shapes, each on a new volume.
pub(crate) fn check_random_calls(
    cases: u32,
    shapes: &[Shape],
    threads: &[usize],
    volume: impl Fn() -> Arc<dyn Volume>,
) {
    let seen = Seen::default();
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let shapes = shapes.iter().flat_map(|&shape| threads.iter().map(move |&threads| (shape, threads)));
    for (shape, threads) in shapes {
        let result = TestRunner::new(config.clone()).run(&steps(), |steps| {
            let mut case = Case::new(shape, threads, volume(), &seen);
            for step in &steps {
                case.run(step);
            }
            case.check();
            let stats = case.store.stats();
            prop_assert_eq!(stats.tickets, 0);
            prop_assert_eq!(stats.lookahead_errors, 0);
            seen.add(&stats);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{shape:?}, {threads} threads: {error}"));
    }
    let counts =
        [&seen.evictions, &seen.cold_reads, &seen.compactions, &seen.checkpoints, &seen.lookahead_loaded];
    let counts = counts.map(|count| count.load(Relaxed));
    assert!(counts.iter().all(|&count| count > 0), "evictions, cold reads, compactions...: {counts:?}");
}
