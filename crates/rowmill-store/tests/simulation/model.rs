//! The expected content of a table, bit for bit.
//!
//! Rows are changed by the engine's optimizer kernels, which have their own tests. The simulation tests
//! whether the store keeps their results.

use std::collections::BTreeMap;
use std::sync::Arc;

use rowmill_kernels::{RowUpdater, Update};
use rowmill_store::*;

use crate::common::SEED;

/// Weights, then optimizer state.
pub(crate) type Row = Arc<[f32]>;

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) spec: TableSpec,
    category: u32,
    pub(crate) rows: BTreeMap<u64, Row>,
    /// Rows that a failed call may have changed: the possible values of each; `None` for no row.
    pub(crate) unsure: BTreeMap<u64, Vec<Option<Row>>>,
    pub(crate) steps: u64,
}

impl Model {
    pub(crate) fn new(spec: TableSpec, category: u32) -> Self {
        Self { spec, category, rows: BTreeMap::new(), unsure: BTreeMap::new(), steps: 0 }
    }

    pub(crate) fn dim(&self) -> usize {
        self.spec.dim as usize
    }

    pub(crate) fn state_floats(&self) -> usize {
        self.spec.optimizer.state_floats(self.dim())
    }

    /// The row with its initial values.
    pub(crate) fn initial(&self, id: u64) -> Row {
        let mut row = vec![0.0; self.dim() + self.state_floats()];
        let (weights, state) = row.split_at_mut(self.dim());
        self.spec.optimizer.initialize_state(state);
        rowmill_kernels::initialize(&self.spec.initializer, SEED, self.category, id, weights);
        row.into()
    }

    /// The row, or its initial values if it does not exist.
    pub(crate) fn read(&self, id: u64) -> Row {
        self.rows.get(&id).cloned().unwrap_or_else(|| self.initial(id))
    }

    /// The rows of `ids` after a put of `values` into the columns from `start` on. If an id is repeated, its
    /// last values count.
    pub(crate) fn put(&self, ids: &[u64], values: &[f32], start: usize) -> BTreeMap<u64, Option<Row>> {
        let width = if ids.is_empty() { 0 } else { values.len() / ids.len() };
        let mut changed = BTreeMap::new();
        for (at, id) in ids.iter().enumerate() {
            let mut row = self.read(*id).to_vec();
            row[start..start + width].copy_from_slice(&values[at * width..][..width]);
            changed.insert(*id, Some(row.into()));
        }
        changed
    }

    /// The rows of `ids` after one optimizer step with the summed gradients of each.
    pub(crate) fn step(&self, ids: &[u64], gradients: &[f32], rate: f32) -> BTreeMap<u64, Option<Row>> {
        let mut sums: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for (id, gradient) in ids.iter().zip(gradients.chunks(self.dim())) {
            let sum = sums.entry(*id).or_insert_with(|| vec![0.0; gradient.len()]);
            sum.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
        }
        let updater = RowUpdater::new(&self.spec.optimizer, self.spec.dtype, self.dim());
        let update = Update { lr: rate, step: self.steps + 1, rounding: None };
        sums.into_iter()
            .map(|(id, gradient)| {
                let mut row = self.read(id).to_vec();
                // SAFETY: the row has `dim` weights and the state of this optimizer, and is not shared.
                unsafe { updater.apply(row.as_mut_ptr(), &gradient, &update) };
                (id, Some(row.into()))
            })
            .collect()
    }

    /// The missing rows among `ids`, with their initial values.
    pub(crate) fn births(&self, ids: &[u64]) -> BTreeMap<u64, Option<Row>> {
        let missing = ids.iter().filter(|id| !self.rows.contains_key(id));
        missing.map(|&id| (id, Some(self.initial(id)))).collect()
    }

    /// Apply the changes of a call.
    pub(crate) fn apply(&mut self, changed: BTreeMap<u64, Option<Row>>) {
        for (id, row) in changed {
            match row {
                Some(row) => drop(self.rows.insert(id, row)),
                None => drop(self.rows.remove(&id)),
            }
        }
    }

    /// A failed call would have made these changes: each row may or may not be changed.
    pub(crate) fn doubt(&mut self, changed: BTreeMap<u64, Option<Row>>) {
        for (id, row) in changed {
            let mut candidates = vec![self.rows.remove(&id), row];
            if candidates[1].is_some() && candidates[0].is_none() {
                // Created, but not changed any more.
                candidates.push(Some(self.initial(id)));
            }
            self.unsure.insert(id, candidates);
        }
    }

    /// Record which of its possible values a doubtful row has.
    pub(crate) fn settle(&mut self, id: u64, found: Option<Row>) -> Result<(), String> {
        let candidates = self.unsure.remove(&id).expect("only doubtful rows are settled");
        if !candidates.iter().any(|candidate| equal(candidate.as_deref(), found.as_deref())) {
            return Err(format!("row {id} is none of {} candidates: {found:?}", candidates.len()));
        }
        if let Some(row) = found {
            self.rows.insert(id, row);
        }
        Ok(())
    }

    /// Whether `found` is a possible value of the row.
    pub(crate) fn allows(&self, id: u64, found: Option<&[f32]>) -> bool {
        match self.unsure.get(&id) {
            Some(candidates) => candidates.iter().any(|candidate| equal(candidate.as_deref(), found)),
            None => equal(self.rows.get(&id).map(AsRef::as_ref), found),
        }
    }
}

/// Bit-for-bit equality.
fn equal(one: Option<&[f32]>, other: Option<&[f32]>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => same_bits(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

pub(crate) fn same_bits(one: &[f32], other: &[f32]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits())
}
