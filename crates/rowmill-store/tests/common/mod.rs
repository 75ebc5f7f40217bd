//! Stores, specs, values and a plain model that tests of the store share.
#![allow(dead_code, reason = "each test uses a different part")]

pub(crate) mod follower;
pub(crate) mod hooked;

use std::collections::HashMap;
use std::sync::Arc;

use rowmill_kernels::{Rounding, RoundingKey, RowInitializer, RowUpdater, Update, narrow, widen};
use rowmill_store::*;
use rowmill_testkit::Rng64;

pub(crate) const SGD: OptimizerSpec = OptimizerSpec::Sgd { lr: 0.5 };
pub(crate) const MOMENTUM_SGD: OptimizerSpec =
    OptimizerSpec::MomentumSgd { lr: 0.5, momentum: 0.75, nesterov: true };
pub(crate) const ADAGRAD: OptimizerSpec =
    OptimizerSpec::Adagrad { lr: 0.5, eps: 1e-10, initial_accumulator: 0.25 };
pub(crate) const ROWWISE_ADAGRAD: OptimizerSpec =
    OptimizerSpec::RowwiseAdagrad { lr: 0.5, eps: 1e-10, initial_accumulator: 0.25 };
pub(crate) const ADAM: OptimizerSpec = OptimizerSpec::Adam { lr: 0.5, beta1: 0.75, beta2: 0.9, eps: 1e-8 };
pub(crate) const ROWWISE_ADAM: OptimizerSpec =
    OptimizerSpec::RowwiseAdam { lr: 0.5, beta1: 0.75, beta2: 0.9, eps: 1e-8 };
pub(crate) const FTRL: OptimizerSpec =
    OptimizerSpec::Ftrl { lr: 0.5, beta: 1.0, l1: 0.5, l2: 0.25, initial_accumulator: 0.25 };
pub(crate) const INITIALIZER: Initializer = Initializer::Uniform { low: -0.5, high: 0.5 };
pub(crate) const SEED: u64 = 7;

pub(crate) fn options(row_memory: Option<u64>) -> StoreOptions {
    StoreOptions { memory: 32 << 20, row_memory, threads: 2, seed: SEED, ..StoreOptions::default() }
}

/// Numbers of threads that a test runs with; more of them with `ROWMILL_TEST_LONG`.
pub(crate) fn thread_counts() -> &'static [usize] {
    if std::env::var_os("ROWMILL_TEST_LONG").is_some() { &[1, 2, 3, 8, 16] } else { &[1, 2, 8] }
}

/// `options` with this number of threads, where every call is spread, even of a single row.
pub(crate) fn spread(options: &StoreOptions, threads: usize) -> StoreOptions {
    StoreOptions { threads, spread_rows_min: 1, ..options.clone() }
}

pub(crate) fn spec(dim: u32, optimizer: OptimizerSpec) -> TableSpec {
    TableSpec {
        dim,
        dtype: Dtype::F32,
        optimizer,
        initializer: INITIALIZER,
        staleness: StalenessBound::Steps(0),
        ids: IdRange::Sparse,
        eviction: None,
        admission: None,
    }
}

/// `spec` with bf16 weights.
pub(crate) fn bf16(spec: TableSpec) -> TableSpec {
    TableSpec { dtype: Dtype::Bf16, ..spec }
}

/// `spec` with split-bf16 weights.
pub(crate) fn split_bf16(spec: TableSpec) -> TableSpec {
    TableSpec { dtype: Dtype::SplitBf16, ..spec }
}

pub(crate) fn bound(steps: u8) -> TableSpec {
    TableSpec { staleness: StalenessBound::Steps(steps), ..spec(4, SGD) }
}

/// A version of which the newest `keep` stay.
pub(crate) fn as_version(name: &str, keep: usize) -> NewVersion {
    NewVersion { name: name.into(), step: None, metric: None, keep, best: None }
}

pub(crate) fn open(volume: &(impl Volume + Clone + 'static), options: &StoreOptions) -> Arc<Store> {
    Store::open_volume(Arc::new(volume.clone()), options.clone()).unwrap()
}

/// A store with memory for about two thousand rows of eight weights, and one table.
pub(crate) struct SmallStore {
    volume: MemoryVolume,
    options: StoreOptions,
    pub(crate) store: Arc<Store>,
    pub(crate) table: Table,
}

impl SmallStore {
    pub(crate) fn new(spec: &TableSpec, feed: Option<FeedOptions>) -> Self {
        let volume = MemoryVolume::new();
        let options = StoreOptions { feed, ..options(Some(96 << 10)) };
        let store = open(&volume, &options);
        let table = store.table("t", spec).unwrap();
        Self { volume, options, store, table }
    }

    /// Reopen at the last checkpoint.
    pub(crate) fn reopen(&mut self) {
        self.store.close();
        self.store = open(&self.volume, &self.options);
        self.table = self.store.table("t", self.table.spec()).unwrap();
    }

    pub(crate) fn volume(&self) -> Arc<dyn Volume> {
        Arc::new(self.volume.clone())
    }
}

/// Store the rows `from..to`, 128 weights each, all equal to their ids.
pub(crate) fn put_numbered(table: &Table, from: u64, to: u64) {
    for from in (from..to).step_by(2000) {
        let ids: Vec<u64> = (from..(from + 2000).min(to)).collect();
        let values: Vec<f32> = ids.iter().flat_map(|&id| [id as f32; 128]).collect();
        table.put(&ids, &values, None).unwrap();
    }
}

/// Gradients whose sums are exact in any order: multiples of 1/8 in [-2, 2).
pub(crate) fn gradients(rng: &mut Rng64, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.below(32) as f32 / 8.0 - 2.0).collect()
}

/// A row of the model, with weights as they are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) weights: Vec<f32>,
    pub(crate) state: Vec<f32>,
}

/// The expected content of a table, in plain maps.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) spec: TableSpec,
    category: u32,
    pub(crate) rows: HashMap<u64, Row>,
    pub(crate) steps: u64,
}

impl Model {
    pub(crate) fn new(spec: TableSpec, category: u32) -> Self {
        Self { spec, category, rows: HashMap::new(), steps: 0 }
    }

    pub(crate) fn dim(&self) -> usize {
        self.spec.dim as usize
    }

    pub(crate) fn initial(&self, id: u64) -> Row {
        let mut weights = vec![0.0; self.dim()];
        let initializer = RowInitializer::new(&self.spec.initializer, SEED, self.category);
        initializer.for_dtype(self.spec.dtype).fill(id, &mut weights);
        let mut state = vec![0.0; self.spec.optimizer.state_floats(self.dim())];
        self.spec.optimizer.initialize_state(&mut state);
        Row { weights, state }
    }

    pub(crate) fn read(&self, id: u64) -> Row {
        self.rows.get(&id).cloned().unwrap_or_else(|| self.initial(id))
    }

    /// The weights that a lookup returns: the upper halves of split-bf16 weights.
    pub(crate) fn looked_up(&self, id: u64) -> Vec<f32> {
        let mut weights = self.read(id).weights;
        if self.spec.dtype == Dtype::SplitBf16 {
            for weight in &mut weights {
                *weight = f32::from_bits(weight.to_bits() & 0xffff_0000);
            }
        }
        weights
    }

    pub(crate) fn row(&mut self, id: u64) -> &mut Row {
        let initial = self.initial(id);
        self.rows.entry(id).or_insert(initial)
    }

    pub(crate) fn put(&mut self, ids: &[u64], values: &[f32]) {
        let dim = self.dim();
        for (&id, values) in ids.iter().zip(values.chunks(dim)) {
            self.row(id).weights.copy_from_slice(values);
            if self.spec.dtype == Dtype::Bf16 {
                widen(&narrowed(values), &mut self.row(id).weights);
            }
        }
    }

    pub(crate) fn put_state(&mut self, ids: &[u64], values: &[f32]) {
        let state_floats = self.spec.optimizer.state_floats(self.dim());
        for (&id, values) in ids.iter().zip(values.chunks(state_floats)) {
            self.row(id).state.copy_from_slice(values);
        }
    }

    /// One optimizer step with the summed gradients of each distinct id.
    pub(crate) fn step(&mut self, rate: f32, gradients: impl IntoIterator<Item = (u64, Vec<f32>)>) {
        let mut sums: HashMap<u64, Vec<f32>> = HashMap::new();
        for (id, gradient) in gradients {
            let sum = sums.entry(id).or_insert_with(|| vec![0.0; gradient.len()]);
            sum.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
        }
        self.steps += 1;
        let (updater, dtype) = (self.updater(), self.spec.dtype);
        let (key, step) = (RoundingKey::new(SEED, self.category), self.steps);
        for (id, gradient) in sums {
            let rounding = Some(Rounding { key, ids: &[id] });
            let Row { weights, state } = self.row(id);
            let mut row = match dtype {
                Dtype::F32 | Dtype::SplitBf16 => weights.clone(),
                Dtype::Bf16 => paired(&narrowed(weights)),
            };
            let state_at = row.len();
            row.extend_from_slice(state);
            // SAFETY: the row holds weights and state.
            unsafe { updater.apply(row.as_mut_ptr(), &gradient, &Update { lr: rate, step, rounding }) };
            match dtype {
                Dtype::F32 | Dtype::SplitBf16 => weights.copy_from_slice(&row[..state_at]),
                Dtype::Bf16 => widen(&halves(&row)[..weights.len()], weights),
            }
            state.copy_from_slice(&row[state_at..]);
        }
    }

    /// The arithmetic is that of the kernels, whose own tests compare it with the formulas. This test checks
    /// exactly which row got which gradient at which rate and step. Split-bf16 rows are updated like 32-bit
    /// rows.
    fn updater(&self) -> RowUpdater {
        let dtype = if self.spec.dtype == Dtype::SplitBf16 { Dtype::F32 } else { self.spec.dtype };
        RowUpdater::new(&self.spec.optimizer, dtype, self.dim())
    }

    pub(crate) fn rmw(&mut self, ids: &[u64], gradients: &[f32], rate: f32) {
        let dim = self.dim();
        self.step(rate, ids.iter().copied().zip(gradients.chunks(dim).map(<[f32]>::to_vec)));
    }

    pub(crate) fn sorted_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.rows.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Compare the whole content of the table with the model.
    pub(crate) fn check(&self, table: &Table) {
        let ids = self.sorted_ids();
        assert_eq!(
            (table.len(), table.steps()),
            (ids.len(), self.steps),
            "rows and steps of {}",
            table.name()
        );
        let state_floats = table.state_floats();
        for ids in ids.chunks(1000) {
            let mut weights = vec![0.0; ids.len() * self.dim()];
            let mut states = vec![0.0; ids.len() * state_floats];
            table.get(ids, &mut weights).unwrap();
            table.get_state(ids, &mut states).unwrap();
            assert!(table.contains(ids).unwrap().iter().all(|&found| found));
            for (number, id) in ids.iter().enumerate() {
                let row = &self.rows[id];
                let what = || format!("row {id} of {}", table.name());
                near(&weights[number * self.dim()..][..self.dim()], &row.weights, 0.0, what);
                near(&states[number * state_floats..][..state_floats], &row.state, 0.0, what);
            }
        }
    }
}

fn narrowed(values: &[f32]) -> Vec<u16> {
    let mut weights = vec![0; values.len()];
    narrow(values, &mut weights);
    weights
}

/// bf16 weights as the floats in whose memory they are stored.
fn paired(weights: &[u16]) -> Vec<f32> {
    let half = |pair: &[u16], which: usize| u32::from(pair.get(which).copied().unwrap_or(0));
    weights.chunks(2).map(|pair| f32::from_bits(half(pair, 0) | half(pair, 1) << 16)).collect()
}

fn halves(floats: &[f32]) -> Vec<u16> {
    floats.iter().flat_map(|pair| [pair.to_bits() as u16, (pair.to_bits() >> 16) as u16]).collect()
}

/// Checks equality up to a relative error.
pub(crate) fn near(found: &[f32], expected: &[f32], tolerance: f32, what: impl Fn() -> String) {
    assert_eq!(found.len(), expected.len(), "{}", what());
    for (column, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{}, column {column}: {found} instead of {expected}",
            what()
        );
    }
}
