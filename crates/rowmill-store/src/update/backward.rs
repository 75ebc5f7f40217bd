//! The backward of a fused lookup. Gradients of pooled vectors are summed per distinct row, in lookup order,
//! and every row takes one optimizer step (`FusedRec`, Section 3: local accumulation on unique rows).

use rowmill_index::prefetch_bytes;
use rowmill_kernels::{GradientAddresses, LookupOrder, Lookups, Update, accumulate_range};

use super::update::{Change, Target};
use crate::error::StoreError;
use crate::group::{CHUNK, Group, Ticket};
use crate::lookup::{Feature, Lookup};
use crate::staleness::{Release, Released};
use crate::table::{Key, Mark, TableState};

/// Rows whose gradients one task sums.
const SUM_TASK_ROWS: usize = 2048;

/// Gradients that one task checks to be finite.
const FINITE_TASK_FLOATS: usize = 1 << 17;

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

/// Source of the gradients of a table's distinct rows.
enum Source<'a> {
    /// One address per row.
    Each(GradientAddresses),
    /// Gradients of bags, `stride` floats apart, and the bags that looked each row up.
    Bags { order: LookupOrder, gradients: &'a [f32], stride: usize },
}

/// One optimizer step on the rows of a lookup.
struct Step<'a> {
    group: &'a Group,
    /// By table number within the group.
    tables: Vec<Option<TableStep<'a>>>,
}

/// One optimizer step on the rows of one table.
#[derive(Clone)]
struct TableStep<'a> {
    table: &'a TableState,
    update: Update<'static>,
    /// Position of the table's first row among the rows of the lookup.
    base: u32,
    source: &'a Source<'a>,
    /// How the update changes the rows' stamps.
    mark: Option<Mark>,
}

impl Step<'_> {
    #[inline]
    fn of(&self, key: &Key) -> &TableStep<'_> {
        self.tables[key.table as usize].as_ref().expect("a table of the lookup")
    }
}

impl Change for Step<'_> {
    fn prefetch(&self, keys: &[Key]) {
        let step = self.of(&keys[0]);
        let bytes = 4 * self.group.core.layout.dim;
        let rows = keys.iter().map(|key| key.position - step.base);
        match step.source {
            // These positions are consecutive, so gradients are read in order and the CPU prefetches them
            // itself.
            Source::Each(_)
                if keys[keys.len() - 1].position.wrapping_sub(keys[0].position) < keys.len() as u32 => {}
            Source::Each(addresses) => rows.for_each(|row| prefetch_bytes(addresses.of(row), bytes)),
            Source::Bags { order, gradients, stride } => rows.for_each(|row| {
                if let Some(bag) = order.first_bag(row) {
                    prefetch_bytes(gradients.as_ptr().wrapping_add(bag as usize * stride), bytes);
                }
            }),
        }
    }

    fn change(&self, keys: &[Key], rows: &[*mut f32]) {
        let TableStep { table, update, base, source, mark } = self.of(&keys[0]);
        let mut ids = [0; CHUNK];
        let update = &table.rounded(update, keys, &mut ids);
        let core = &self.group.core;
        // SAFETY: these are resident rows of this group under their shard's write lock. Every bag has `dim`
        // gradients (`check_gradients`), and the address of every distinct row points to `dim` floats.
        unsafe {
            match source {
                Source::Bags { order, gradients, stride } => {
                    let mut unique = [0; CHUNK];
                    for (unique, key) in unique.iter_mut().zip(keys) {
                        *unique = key.position - base;
                    }
                    let unique = &unique[..keys.len()];
                    core.updater.apply_lookups(rows, order, unique, gradients.as_ptr(), *stride, update);
                }
                Source::Each(addresses) => {
                    let mut each = [std::ptr::null(); CHUNK];
                    for (gradient, key) in each.iter_mut().zip(keys) {
                        *gradient = addresses.of(key.position - base);
                    }
                    core.updater.apply_each(rows, &each[..rows.len()], update);
                }
            }
            if let Some(mark) = mark {
                mark.press(&core.layout, rows);
            }
        }
    }
}

impl Lookup {
    fn lookups_of<'a>(&'a self, feature: &'a Feature) -> Lookups<'a> {
        Lookups {
            inverse: &self.tables[feature.table].inverse[feature.lookups()],
            offsets: &feature.offsets,
            weights: feature.weights.as_deref(),
            pooling: feature.pooling,
        }
    }

    /// The lookups of a feature, grouped by distinct row of its table.
    fn order_of(&self, feature: &Feature) -> LookupOrder {
        let mut order = LookupOrder::default();
        order.build(&self.lookups_of(feature), self.tables[feature.table].unique.len());
        order
    }
}

impl Group {
    /// Check that there is a gradient for every bag of every feature.
    fn check_gradients(
        &self,
        lookup: &Lookup,
        gradients: &[f32],
        row_stride: usize,
    ) -> Result<(), StoreError> {
        let bags = lookup.features.iter().map(|feature| feature.offsets.len() - 1);
        lookup.placement(row_stride).check("gradients", gradients.len(), bags, self.core.layout.dim)
    }

    /// The sources of the gradients of each table's distinct rows. If several features look up one table, its
    /// gradients are summed here. For other tables, only the rows that repeat are summed, if they are few.
    /// Otherwise lookups are only grouped, and summed row by row during the update.
    fn sources<'a>(&self, lookup: &Lookup, gradients: &'a [f32], row_stride: usize) -> Vec<Source<'a>> {
        let row_stride = lookup.placement(row_stride).stride(self.core.layout.dim);
        let source = |number: usize| {
            let mut features = lookup.features.iter().filter(|feature| feature.table == number);
            let feature = features.next().expect("every table has a feature");
            let dim = self.core.layout.dim;
            if features.next().is_some() {
                let sums = self.sums_of(lookup, number, gradients, row_stride);
                return Source::Each(GradientAddresses::of_sums(sums, dim));
            }
            let first = gradients.get(feature.first..).unwrap_or_default();
            let rows = lookup.tables[number].unique.len();
            // SAFETY: bag `b` of this feature has `dim` gradients at `b * row_stride` (`check_gradients`),
            // which outlive the source.
            let addresses = unsafe {
                let lookups = lookup.lookups_of(feature);
                GradientAddresses::of_lookups(&lookups, rows, first.as_ptr(), row_stride, dim)
            };
            addresses.map_or_else(
                || Source::Bags { order: lookup.order_of(feature), gradients: first, stride: row_stride },
                Source::Each,
            )
        };
        self.for_each_table(lookup, source)
    }

    /// Run `work` for the number of every table of a lookup, on several threads if that pays.
    fn for_each_table<T: Send>(&self, lookup: &Lookup, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        self.workers.map(lookup.lookups(), lookup.tables.len(), work)
    }

    /// Summed gradients of the distinct rows of one table, `dim` floats each.
    fn sums_of(&self, lookup: &Lookup, number: usize, gradients: &[f32], row_stride: usize) -> Vec<f32> {
        let dim = self.core.layout.dim;
        let row_stride = lookup.placement(row_stride).stride(dim);
        let mut sums = vec![0.0_f32; lookup.tables[number].unique.len() * dim];
        let features = lookup.features.iter().filter(|feature| feature.table == number);
        for (nth, feature) in features.enumerate() {
            if feature.offsets.len() <= 1 {
                continue;
            }
            let order = lookup.order_of(feature);
            let sum = |first: usize, out: &mut [f32]| {
                let last = first + out.len() / dim;
                let gradients = &gradients[feature.first..];
                // SAFETY: bag `b` of this feature has `dim` gradients at `b * row_stride`, inside `gradients`
                // (`check_gradients`).
                unsafe {
                    accumulate_range(&order, first..last, gradients.as_ptr(), row_stride, dim, out);
                }
            };
            if nth > 0 {
                let mut more = vec![0.0; sums.len()];
                sum(0, &mut more);
                sums.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
            } else {
                let mut parts: Vec<_> = sums.chunks_mut(SUM_TASK_ROWS * dim).enumerate().collect();
                self.workers.for_each_mut(feature.lookups().len(), &mut parts, |(number, out)| {
                    sum(*number * SUM_TASK_ROWS, out);
                });
            }
        }
        sums
    }

    /// Take one optimizer step on every distinct row of `lookup`, and release its clocks. `rates` has one
    /// learning rate per feature, equal for all features of a table.
    pub(crate) fn apply(
        &self,
        lookup: &Lookup,
        gradients: &[f32],
        row_stride: usize,
        rates: &[f32],
        ticket: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        if rates.len() != lookup.features.len() {
            return Err(StoreError::Length {
                argument: "lr",
                got: rates.len(),
                expected: lookup.features.len(),
                why: "one learning rate per feature".into(),
            });
        }
        let mut rate_of: Vec<Option<f32>> = vec![None; lookup.tables.len()];
        for (feature, &rate) in lookup.features.iter().zip(rates) {
            let table = &lookup.tables[feature.table].table;
            check_rate(table, rate)?;
            table.check_event_time()?;
            let first = *rate_of[feature.table].get_or_insert(rate);
            if first != rate {
                return Err(StoreError::MixedRates { table: table.name.clone(), first, second: rate });
            }
        }
        self.check_gradients(lookup, gradients, row_stride)?;
        self.check_finite(lookup, gradients, row_stride)?;
        let sources = self.sources(lookup, gradients, row_stride);
        let mut tables: Vec<Option<TableStep<'_>>> = vec![None; self.tables.read().len()];
        for (number, (table, source)) in lookup.tables.iter().zip(&sources).enumerate() {
            let lr = rate_of[number].expect("every table has a feature");
            let update = Update { lr, step: table.table.next_step(), rounding: None };
            let mark = table.table.mark(update.step, ticket.and_then(|ticket| ticket.state.event_time()));
            tables[table.table.local as usize] =
                Some(TableStep { table: &table.table, update, base: table.base as u32, source, mark });
        }
        let release = ticket.map_or(Release::NOTHING, |ticket| self.release_of(lookup, ticket));
        let target = match &lookup.tables[..] {
            [rows] if lookup.known.is_empty() && lookup.refused.is_empty() => {
                Target::Ids { table: &rows.table, ids: &rows.unique }
            }
            _ => Target::Keys { keys: lookup.keys(), known: &lookup.known },
        };
        self.update(&target, &release, &Step { group: self, tables })
    }

    fn check_finite(&self, lookup: &Lookup, gradients: &[f32], row_stride: usize) -> Result<(), StoreError> {
        let tasks = gradients.len().div_ceil(FINITE_TASK_FLOATS);
        let positions = self.workers.map(lookup.lookups(), tasks, |number| {
            let first = number * FINITE_TASK_FLOATS;
            let some = &gradients[first..gradients.len().min(first + FINITE_TASK_FLOATS)];
            Some(first + rowmill_kernels::first_non_finite(some)?)
        });
        if let Some(position) = positions.into_iter().flatten().next() {
            let within = lookup.placement(row_stride).within(position);
            let behind = lookup.features.partition_point(|feature| feature.first <= within);
            let table = &lookup.tables[lookup.features[behind - 1].table].table;
            return Err(StoreError::NotFinite {
                argument: "gradients",
                table: table.name.clone(),
                value: gradients[position],
                position,
            });
        }
        Ok(())
    }

    /// The clocks of a lookup's rows that a ticket holds.
    fn release_of(&self, lookup: &Lookup, ticket: &Ticket) -> Release {
        let per_table: Vec<Released> = lookup
            .tables
            .iter()
            .map(|rows| {
                ticket.state.take(self.core.number, rows.table.local, Some(lookup.serial), &rows.unique)
            })
            .collect();
        if per_table.iter().all(|released| matches!(released, Released::All)) {
            return Release { ticket: ticket.id(), rows: Released::All };
        }
        let mut marks = vec![false; lookup.keys().positions()];
        for (rows, released) in lookup.tables.iter().zip(&per_table) {
            for within in 0..rows.unique.len() {
                marks[rows.base + within] = released.contains(within as u32);
            }
        }
        Release { ticket: ticket.id(), rows: Released::Some(marks) }
    }

    /// The summed gradients of the distinct rows, per table. Changes nothing. Gradients need not be finite,
    /// because a gradient scaler inspects them first.
    pub(crate) fn row_gradients(
        &self,
        lookup: &Lookup,
        gradients: &[f32],
        row_stride: usize,
    ) -> Result<Vec<RowGradients>, StoreError> {
        self.check_gradients(lookup, gradients, row_stride)?;
        let sums = self.for_each_table(lookup, |number| self.sums_of(lookup, number, gradients, row_stride));
        Ok(lookup
            .tables
            .iter()
            .zip(sums)
            .map(|(rows, values)| RowGradients {
                table: rows.table.name.clone(),
                ids: rows.unique.to_vec(),
                values,
            })
            .collect())
    }
}

/// Check that a learning rate is finite and not negative.
pub(crate) fn check_rate(table: &TableState, rate: f32) -> Result<(), StoreError> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(());
    }
    Err(StoreError::NotFinite { argument: "lr", table: table.name.clone(), value: rate, position: 0 })
}
