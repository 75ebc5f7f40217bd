//! The backward of a fused lookup: gradients of pooled vectors are summed per distinct row, in lookup
//! order, and every row takes one optimizer step (`FusedRec`, Section 3: local accumulation on unique rows).

use rayon::prelude::*;
use rowmill_kernels::{LookupOrder, Lookups, Update, accumulate_range};

use crate::StoreError;
use crate::group::Group;
use crate::keys::Key;
use crate::lookup::Lookup;
use crate::table_state::TableState;
use crate::ticket::{Released, Ticket};
use crate::update::PENDING;

/// Rows whose gradients one task sums.
const SUM_TASK_ROWS: usize = 2048;

/// Gradients of the distinct rows of one table.
#[derive(Clone, Debug, PartialEq)]
pub struct RowGradients {
    /// Name of the table.
    pub table: String,
    /// Distinct ids.
    pub ids: Vec<u64>,
    /// `dim` floats per id.
    pub values: Vec<f32>,
}

impl Group {
    /// Gradients of all distinct rows of a lookup, `dim` floats each, by position of its keys.
    fn gradients_of(
        &self,
        lookup: &Lookup,
        gradients: &[f32],
        row_stride: usize,
    ) -> Result<Vec<f32>, StoreError> {
        struct Gradients<'a>(&'a [f32]);
        let dim = self.core.layout.dim;
        let rows = lookup.features.iter().map(|feature| feature.offsets.len() - 1).max().unwrap_or(0);
        let width = lookup.features.len() * dim;
        let needed = if rows == 0 { 0 } else { (rows - 1) * row_stride + width };
        if gradients.len() < needed || (rows > 1 && row_stride < width) {
            return Err(StoreError::Length {
                argument: "gradients",
                got: gradients.len(),
                expected: needed.max(rows * width),
                why: format!("{rows} bags of {} features of {dim} floats", lookup.features.len()),
            });
        }
        let gradients = Gradients(gradients);
        let mut sums = vec![0.0_f32; lookup.keys.len() * dim];
        let mut rest = &mut sums[..];
        let mut parts = Vec::new();
        for (number, table) in lookup.tables.iter().enumerate() {
            let (own, behind) = rest.split_at_mut(table.unique.len() * dim);
            parts.push((number, own));
            rest = behind;
        }
        let sum_table = |(number, sums): (usize, &mut [f32])| {
            let gradients = &gradients;
            let table = &lookup.tables[number];
            let features = lookup.features.iter().enumerate().filter(|(_, feature)| feature.table == number);
            for (nth, (column, feature)) in features.enumerate() {
                let lookups = Lookups {
                    inverse: &table.inverse[feature.lookups()],
                    offsets: &feature.offsets,
                    weights: feature.weights.as_deref(),
                    pooling: feature.pooling,
                };
                let mut order = LookupOrder::default();
                order.build(&lookups, table.unique.len());
                let sum = |first: usize, out: &mut [f32]| {
                    let last = first + out.len() / dim;
                    // SAFETY: bag `b` of this feature has `dim` gradients at `b * row_stride + column *
                    // dim`, inside `gradients` as checked above.
                    unsafe {
                        let base = gradients.0.as_ptr().add(column * dim);
                        accumulate_range(&order, first..last, base, row_stride, dim, out);
                    }
                };
                if feature.offsets.len() <= 1 {
                    continue;
                }
                if nth > 0 {
                    let mut more = vec![0.0; sums.len()];
                    sum(0, &mut more);
                    sums.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
                } else if self.in_parallel(table.inverse.len()) {
                    sums.par_chunks_mut(SUM_TASK_ROWS * dim)
                        .enumerate()
                        .for_each(|(n, out)| sum(n * SUM_TASK_ROWS, out));
                } else {
                    sum(0, sums);
                }
            }
        };
        let lookups: usize = lookup.tables.iter().map(|table| table.inverse.len()).sum();
        if self.in_parallel(lookups) {
            self.threads.install(|| parts.into_par_iter().for_each(sum_table));
        } else {
            parts.into_iter().for_each(sum_table);
        }
        Ok(sums)
    }

    /// Take one optimizer step on every distinct row of `lookup`, and give its clocks back. `rates` has
    /// one learning rate per feature; features of one table must agree.
    pub(crate) fn apply(
        &self,
        lookup: &Lookup,
        gradients: &[f32],
        row_stride: usize,
        rates: &[f32],
        ticket: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        let dim = self.core.layout.dim;
        if rates.len() != lookup.features.len() {
            return Err(StoreError::Length {
                argument: "lr",
                got: rates.len(),
                expected: lookup.features.len(),
                why: "one rate per feature".into(),
            });
        }
        for (feature, &rate) in lookup.features.iter().zip(rates) {
            check_rate(&lookup.tables[feature.table].table, rate)?;
        }
        self.check_finite(lookup, gradients, row_stride)?;
        let sums = self.gradients_of(lookup, gradients, row_stride)?;
        let mut updates = vec![Update { lr: 0.0, step: 0 }; self.tables.read().len()];
        for (number, table) in lookup.tables.iter().enumerate() {
            let feature =
                lookup.features.iter().position(|feature| feature.table == number).expect("made for one");
            updates[table.table.local as usize] =
                Update { lr: rates[feature], step: table.table.next_step() };
        }
        let released = ticket.map_or(Released::None, |ticket| self.released(lookup, ticket));
        self.update(&lookup.keys, &released, &|keys: &[Key], rows: &[*mut f32]| {
            let gradients: [&[f32]; PENDING] = std::array::from_fn(|number| {
                keys.get(number).map_or(&[][..], |key| &sums[key.position as usize * dim..][..dim])
            });
            let update = &updates[keys[0].table as usize];
            // SAFETY: these are resident rows of this group under their shard's write lock; every gradient
            // has `dim` floats.
            unsafe { self.core.updater.apply_each(rows, &gradients[..rows.len()], update) };
        })
    }

    fn check_finite(&self, lookup: &Lookup, gradients: &[f32], row_stride: usize) -> Result<(), StoreError> {
        let dim = self.core.layout.dim;
        if let Some(position) = rowmill_kernels::first_non_finite(gradients) {
            let feature = (position % row_stride.max(1) / dim).min(lookup.features.len() - 1);
            let table = &lookup.tables[lookup.features[feature].table].table;
            return Err(StoreError::NotFinite {
                argument: "gradients",
                table: table.name.clone(),
                value: gradients[position],
                position,
            });
        }
        Ok(())
    }

    fn released(&self, lookup: &Lookup, ticket: &Ticket) -> Released {
        let per_table: Vec<Released> = lookup
            .tables
            .iter()
            .map(|rows| {
                ticket.state.take(self.core.number, rows.table.local, Some(lookup.serial), &rows.unique)
            })
            .collect();
        if per_table.iter().all(|released| matches!(released, Released::All)) {
            return Released::All;
        }
        let mut marks = vec![false; lookup.keys.len()];
        for (rows, released) in lookup.tables.iter().zip(&per_table) {
            for within in 0..rows.unique.len() {
                marks[rows.base + within] = released.contains(within as u32);
            }
        }
        Released::Some(marks)
    }

    /// The gradients of the distinct rows, per table, without changing anything. They need not be finite: a
    /// gradient scaler looks at them first.
    pub(crate) fn row_gradients(
        &self,
        lookup: &Lookup,
        gradients: &[f32],
        row_stride: usize,
    ) -> Result<Vec<RowGradients>, StoreError> {
        let dim = self.core.layout.dim;
        let sums = self.gradients_of(lookup, gradients, row_stride)?;
        Ok(lookup
            .tables
            .iter()
            .map(|rows| RowGradients {
                table: rows.table.name.clone(),
                ids: rows.unique.to_vec(),
                values: sums[rows.base * dim..(rows.base + rows.unique.len()) * dim].to_vec(),
            })
            .collect())
    }
}

/// A learning rate must be a finite number that is not negative.
pub(crate) fn check_rate(table: &TableState, rate: f32) -> Result<(), StoreError> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(());
    }
    Err(StoreError::NotFinite { argument: "lr", table: table.name.clone(), value: rate, position: 0 })
}
