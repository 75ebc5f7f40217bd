//! Fused pooled lookups: many features of one group in one call, and their backward.
//!
//! Forward: ids become unique rows per table (FusedRec, Section 3: segment unique with inverse), rows
//! become addresses, bags are summed straight from those addresses. Backward: gradients of bags are
//! summed per unique row in lookup order, and every row takes one optimizer step.

use std::sync::Arc;

use rayon::prelude::*;
use rowmill_kernels::{LookupOrder, Lookups, RowPtr, UniqueScratch, Update, accumulate_range, pool, segment_unique};
use rowmill_rows::{IdBag, Pooling};

use crate::StoreError;
use crate::acquire::Wish;
use crate::group::Group;
use crate::keys::Keys;
use crate::table_state::TableState;
use crate::ticket::{Released, Ticket};

/// Floats pooled per task when a call is spread over threads.
const POOL_TASK_FLOATS: usize = 1 << 16;
/// Rows whose gradients one task sums.
const SUM_TASK_ROWS: usize = 2048;

/// What a fused lookup remembers for its backward.
#[derive(Debug)]
pub struct Lookup {
    group: Arc<Group>,
    serial: u64,
    features: Vec<Feature>,
    tables: Vec<TableRows>,
    keys: Keys,
}

/// One feature of a lookup.
#[derive(Debug)]
struct Feature {
    /// Position in `Lookup::tables`.
    table: usize,
    /// First lookup of the feature among those of its table.
    begin: usize,
    offsets: Vec<i64>,
    weights: Option<Vec<f32>>,
    pooling: Pooling,
}

/// The distinct rows of one table in a lookup.
#[derive(Debug)]
struct TableRows {
    table: Arc<TableState>,
    /// Distinct ids, by first occurrence.
    unique: Arc<[u64]>,
    /// For each lookup of the table's features its position in `unique`.
    inverse: Vec<u32>,
    /// Position of the first unique row among the keys of the whole lookup.
    base: usize,
}

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

impl Lookup {
    /// Number of distinct rows.
    pub fn rows(&self) -> usize {
        self.keys.len()
    }

    /// Number of features.
    pub fn features(&self) -> usize {
        self.features.len()
    }

    /// Names of the tables, each once.
    pub fn table_names(&self) -> Vec<&str> {
        self.tables.iter().map(|table| table.table.name.as_str()).collect()
    }
}

impl Group {
    /// Pool the rows of `bags` into `out`: bag `b` of feature `f` at `b * row_stride + f * dim`. With a
    /// ticket this is a training read: missing rows are born and clocks taken.
    pub(crate) fn lookup(
        self: &Arc<Self>,
        bags: &[(Arc<TableState>, IdBag<'_>)],
        out: &mut [f32],
        row_stride: usize,
        ticket: Option<&Ticket>,
    ) -> Result<Lookup, StoreError> {
        self.check_out(bags, out.len(), row_stride)?;
        let lookup = self.prepare(bags)?;
        let reading = self.core.log.reading();
        let wish = self.wish(&lookup, ticket);
        let entered = self.enter(&lookup.keys, &wish)?;
        let pooled = self.with_rows(&reading, &lookup.keys, entered, |rows| self.pool(&lookup, rows, out, row_stride));
        if let Err(error) = pooled {
            for shard in 0..self.shards.len() {
                self.leave_shard(&lookup.keys, shard, &wish);
            }
            return Err(error);
        }
        if let Some(ticket) = ticket {
            for rows in lookup.tables.iter().filter(|rows| rows.table.bound().is_some()) {
                ticket.state.add(self.core.number, rows.table.local, lookup.serial, &rows.unique);
            }
        }
        Ok(lookup)
    }

    /// Copy the weights of `ids` to `out`, as a training read.
    pub(crate) fn fetch(
        self: &Arc<Self>,
        table: &Arc<TableState>,
        ids: &[u64],
        out: &mut [f32],
        ticket: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        let offsets: Vec<i64> = (0..=ids.len() as i64).collect();
        let bag = IdBag { ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum };
        let lookup = self.prepare(&[(Arc::clone(table), bag)])?;
        let reading = self.core.log.reading();
        let mut wish = self.wish(&lookup, ticket);
        wish.births = true;
        let entered = self.enter(&lookup.keys, &wish)?;
        let dim = self.core.layout.dim;
        let copied = self.with_rows(&reading, &lookup.keys, entered, |rows| {
            let rows: Vec<RowPtr> = lookup.tables[0].inverse.iter().map(|&unique| rows[unique as usize]).collect();
            // SAFETY: `with_rows` guarantees `dim` readable floats behind every address, and `out` holds
            // `dim` floats per id (checked by the caller).
            unsafe { rowmill_kernels::gather(&rows, dim, out, dim) };
        });
        if let Err(error) = copied {
            for shard in 0..self.shards.len() {
                self.leave_shard(&lookup.keys, shard, &wish);
            }
            return Err(error);
        }
        if let Some(ticket) = ticket.filter(|_| table.bound().is_some()) {
            ticket.state.add(self.core.number, table.local, lookup.serial, &lookup.tables[0].unique);
        }
        Ok(())
    }

    fn check_out(&self, bags: &[(Arc<TableState>, IdBag<'_>)], len: usize, row_stride: usize) -> Result<(), StoreError> {
        let width = bags.len() * self.core.layout.dim;
        for (table, bag) in bags {
            bag.validate().map_err(|source| StoreError::Bag { table: table.name.clone(), source })?;
            Self::check_ids_padded(table, bag)?;
        }
        let rows = bags.iter().map(|(_, bag)| bag.len()).max().unwrap_or(0);
        let needed = if rows == 0 { 0 } else { (rows - 1) * row_stride + width };
        if len < needed || (rows > 1 && row_stride < width) {
            return Err(StoreError::Length {
                argument: "out",
                got: len,
                expected: needed.max(rows * width),
                why: format!("{rows} bags of {} features of {} floats", bags.len(), self.core.layout.dim),
            });
        }
        Ok(())
    }

    fn check_ids_padded(table: &TableState, bag: &IdBag<'_>) -> Result<(), StoreError> {
        match bag.padding {
            None => Self::check_ids(table, bag.ids),
            Some(padding) => {
                let ids: Vec<u64> = bag.ids.iter().copied().filter(|&id| id != padding).collect();
                Self::check_ids(table, &ids)
            }
        }
    }

    /// Distinct rows of every table, and where each feature's lookups lie.
    pub(crate) fn prepare(self: &Arc<Self>, bags: &[(Arc<TableState>, IdBag<'_>)]) -> Result<Lookup, StoreError> {
        let mut ids_of: Vec<(Arc<TableState>, Option<u64>, Vec<&[u64]>, usize)> = Vec::new();
        let mut features = Vec::with_capacity(bags.len());
        for (table, bag) in bags {
            let known = ids_of.iter().position(|(other, ..)| other.local == table.local);
            let number = known.unwrap_or_else(|| {
                ids_of.push((Arc::clone(table), bag.padding, Vec::new(), 0));
                ids_of.len() - 1
            });
            let (_, padding, ids, lookups) = &mut ids_of[number];
            if *padding != bag.padding {
                return Err(StoreError::MixedPadding { table: table.name.clone() });
            }
            features.push(Feature {
                table: number,
                begin: *lookups,
                offsets: bag.offsets.to_vec(),
                weights: bag.weights.map(<[f32]>::to_vec),
                pooling: bag.pooling,
            });
            ids.push(bag.ids);
            *lookups += bag.ids.len();
        }
        let total: usize = ids_of.iter().map(|(.., lookups)| lookups).sum();
        let unique_rows = |(table, padding, ids, lookups): (Arc<TableState>, Option<u64>, Vec<&[u64]>, usize)| {
            thread_local! {
                static SCRATCH: std::cell::RefCell<UniqueScratch> = std::cell::RefCell::default();
            }
            let joined: Vec<u64>;
            let ids = if let [ids] = ids[..] {
                ids
            } else {
                joined = ids.concat();
                &joined
            };
            let mut unique = Vec::new();
            let mut inverse = vec![0; lookups];
            SCRATCH.with_borrow_mut(|scratch| segment_unique(ids, padding, scratch, &mut unique, &mut inverse));
            table.count_accesses(ids);
            TableRows { table, unique: unique.into(), inverse, base: 0 }
        };
        let mut tables: Vec<TableRows> = if self.in_parallel(total) {
            self.threads.install(|| ids_of.into_par_iter().map(unique_rows).collect())
        } else {
            ids_of.into_iter().map(unique_rows).collect()
        };
        let mut keys = Keys::default();
        for rows in &mut tables {
            rows.base = keys.ids.len();
            keys.ids.extend_from_slice(&rows.unique);
            keys.tables.resize(keys.ids.len(), rows.table.local);
        }
        self.split(&mut keys);
        self.counters.count_call(total, keys.len());
        let serial = self.serial.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Lookup { group: Arc::clone(self), serial, features, tables, keys })
    }

    fn wish<'a>(&self, lookup: &Lookup, ticket: Option<&'a Ticket>) -> Wish<'a> {
        let clocks = ticket.map(|ticket| {
            let state = &*ticket.state;
            let mut fresh: Option<Vec<bool>> = None;
            for rows in &lookup.tables {
                if let Some(marks) = state.fresh(self.core.number, rows.table.local, &rows.unique) {
                    let fresh = fresh.get_or_insert_with(|| vec![true; lookup.keys.len()]);
                    fresh[rows.base..rows.base + marks.len()].copy_from_slice(&marks);
                }
            }
            (state, fresh)
        });
        let bounds = self.tables.read().iter().map(|table| table.bound()).collect();
        Wish { births: ticket.is_some(), clocks, bounds }
    }

    fn pool(&self, lookup: &Lookup, rows: &[RowPtr], out: &mut [f32], row_stride: usize) {
        struct Out(*mut f32);
        // SAFETY: tasks write disjoint rows and columns of `out`.
        unsafe impl Sync for Out {}
        struct Rows<'a>(&'a [RowPtr]);
        // SAFETY: the addresses are only read, and stay valid for the whole call (`with_rows`).
        unsafe impl Sync for Rows<'_> {}
        let dim = self.core.layout.dim;
        let (out, rows) = (Out(out.as_mut_ptr()), Rows(rows));
        let task = |number: usize, from: usize, to: usize| {
            let (out, rows) = (&out, &rows);
            let feature = &lookup.features[number];
            let table = &lookup.tables[feature.table];
            let lookups = Lookups {
                inverse: &table.inverse[feature.begin..],
                offsets: &feature.offsets[from..=to],
                weights: feature.weights.as_deref(),
                pooling: feature.pooling,
            };
            // SAFETY: inverse positions are below the table's unique rows, whose addresses begin at
            // `base` and have `dim` readable floats; offsets were validated; `out` has room for bag
            // `to - 1` of the last feature (checked), and no two tasks write the same floats.
            unsafe {
                let first = out.0.add(from * row_stride + number * dim);
                pool(&rows.0[table.base..table.base + table.unique.len()], &lookups, dim, first, row_stride);
            }
        };
        let lookups: usize = lookup.tables.iter().map(|table| table.inverse.len()).sum();
        if !self.in_parallel(lookups) {
            for (number, feature) in lookup.features.iter().enumerate() {
                task(number, 0, feature.offsets.len() - 1);
            }
            return;
        }
        let mut tasks = Vec::new();
        for (number, feature) in lookup.features.iter().enumerate() {
            let bags = feature.offsets.len() - 1;
            let floats = (*feature.offsets.last().expect("validated") as usize * dim).max(1);
            let step = (bags * POOL_TASK_FLOATS / floats).max(1);
            tasks.extend((0..bags).step_by(step).map(|from| (number, from, (from + step).min(bags))));
        }
        self.threads.install(|| tasks.into_par_iter().for_each(|(number, from, to)| task(number, from, to)));
    }

    /// Gradients of all distinct rows of a lookup, `dim` floats each, by position of its keys.
    fn gradients_of(&self, lookup: &Lookup, gradients: &[f32], row_stride: usize) -> Result<Vec<f32>, StoreError> {
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
                    inverse: &table.inverse[feature.begin..],
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
                    sums.par_chunks_mut(SUM_TASK_ROWS * dim).enumerate().for_each(|(n, out)| sum(n * SUM_TASK_ROWS, out));
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
        let sums = self.gradients_of(lookup, gradients, row_stride)?;
        let mut updates = vec![Update { lr: 0.0, step: 0 }; self.tables.read().len()];
        for (number, table) in lookup.tables.iter().enumerate() {
            let feature = lookup.features.iter().position(|feature| feature.table == number).expect("made for one");
            updates[table.table.local as usize] = Update { lr: rates[feature], step: table.table.next_step() };
        }
        let released = ticket.map_or(Released::None, |ticket| self.released(lookup, ticket));
        let tables = &lookup.keys.tables;
        self.update(&lookup.keys, &released, &|position, row| {
            let position = position as usize;
            // SAFETY: `row` is a resident row of this group under its shard's write lock; the gradient
            // has `dim` floats.
            unsafe {
                self.core.updater.apply(row, &sums[position * dim..][..dim], &updates[tables[position] as usize]);
            }
        })
    }

    fn released(&self, lookup: &Lookup, ticket: &Ticket) -> Released {
        let per_table: Vec<Released> = lookup
            .tables
            .iter()
            .map(|rows| ticket.state.take(self.core.number, rows.table.local, Some(lookup.serial), &rows.unique))
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

    /// The gradients of the distinct rows, per table, without changing anything.
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

impl Lookup {
    /// The group this lookup belongs to.
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }
}

/// A learning rate must be a finite number that is not negative.
pub(crate) fn check_rate(table: &TableState, rate: f32) -> Result<(), StoreError> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(());
    }
    Err(StoreError::NotFinite { argument: "lr", table: table.name.clone(), value: rate, position: 0 })
}
