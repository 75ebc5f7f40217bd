//! Calls of a store that pool rows of many tables: training lookup, its backward, and evaluation.

use std::sync::Arc;

use rowmill_rows::{IdBag, Pooling};

use super::store::Store;
use super::table::Table;
use crate::error::StoreError;
use crate::group::{Group, Ticket, check_ticket};
use crate::lookup::{Lookup, Placement, Pooled};
use crate::table::TableState;
use crate::update::RowGradients;

/// A request for rows of one table.
#[derive(Clone, Copy, Debug)]
pub struct AskedRows<'a> {
    /// The table.
    pub table: &'a Table,
    /// The ids of the rows.
    pub ids: &'a [u64],
    /// How often each id was asked for, if the caller merged several requests. Statistics count these.
    pub times: &'a [u32],
}

impl<'a> AskedRows<'a> {
    /// Every row as a bag of one id. `ends` is `0, 1, 2, ...`.
    fn bags(&self, ends: &'a [i64]) -> IdBag<'a> {
        let offsets = &ends[..=self.ids.len()];
        IdBag { ids: self.ids, offsets, weights: None, padding: None, pooling: Pooling::Sum }
    }

    /// Call `work` with rows as bags of one id each.
    fn with_bags<R>(
        store: &Store,
        asked: &[AskedRows<'_>],
        work: impl FnOnce(
            &Arc<Group>,
            &[(Arc<TableState>, IdBag<'_>)],
            Option<&[&[u32]]>,
        ) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        for AskedRows { table, ids, times } in asked {
            if times.len() != ids.len() {
                return Err(StoreError::Length {
                    argument: "times",
                    got: times.len(),
                    expected: ids.len(),
                    why: format!("one number for every id of table {:?}", table.name()),
                });
            }
        }
        let most = asked.iter().map(|rows| rows.ids.len()).max().unwrap_or(0);
        let ends: Vec<i64> = (0..=most as i64).collect();
        let bags: Vec<_> = asked.iter().map(|rows| (rows.table, rows.bags(&ends))).collect();
        let times: Vec<&[u32]> = asked.iter().map(|rows| rows.times).collect();
        let (group, bags) = group_of(store, &bags)?;
        work(group, &bags, Some(&times))
    }
}

impl Store {
    /// Pool many features without changing anything, for evaluation and serving. As [`Store::lookup`] without
    /// a ticket, but faster and without a backward. It takes no clocks. With `step`, rows announced for that
    /// step stay in memory until it reads them, and rows announced for earlier steps may leave.
    ///
    /// # Errors
    /// As [`Store::lookup`].
    pub fn evaluate<T: Pooled>(
        &self,
        bags: &[(&Table, IdBag<'_>)],
        out: &mut [T],
        row_stride: usize,
        step: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        self.check_open()?;
        check_ticket(&self.tickets, step)?;
        let (group, bags) = group_of(self, bags)?;
        let _caller = self.workers.enter();
        let placement = Placement::Columns { row_stride };
        self.settle(group.evaluate(&bags, None, out, placement, step.map(Ticket::id)))
    }

    /// As [`Store::evaluate`], with all vectors of the first feature, then those of the next. `out` has exactly these
    /// floats.
    ///
    /// # Errors
    /// As [`Store::lookup`].
    pub fn evaluate_in_turn<T: Pooled>(
        &self,
        bags: &[(&Table, IdBag<'_>)],
        out: &mut [T],
    ) -> Result<(), StoreError> {
        self.check_open()?;
        let (group, bags) = group_of(self, bags)?;
        let _caller = self.workers.enter();
        self.settle(group.evaluate(&bags, None, out, Placement::InTurn, None))
    }

    /// Pool many features in one call. All tables must belong to one group. Bag `b` of feature `f` is written
    /// to `out[b * row_stride + f * dim..]`; bfloat16 output is rounded to nearest.
    ///
    /// With a ticket this is a training read: it creates missing rows and takes clocks. Without, missing rows
    /// read as the values they would be created with.
    ///
    /// # Errors
    /// Wrong shapes, ids outside a dense table, a row beyond its staleness bound until the deadline, or a
    /// failed read.
    pub fn lookup<T: Pooled>(
        &self,
        bags: &[(&Table, IdBag<'_>)],
        out: &mut [T],
        row_stride: usize,
        ticket: Option<&Ticket>,
    ) -> Result<Lookup, StoreError> {
        self.check_open()?;
        if ticket.is_some() {
            self.check_writable("a training read")?;
            check_ticket(&self.tickets, ticket)?;
            bags.iter().try_for_each(|(table, _)| table.state().check_event_time())?;
        }
        let (group, bags) = group_of(self, bags)?;
        let _caller = self.workers.enter();
        self.settle(group.lookup(&bags, None, out, Placement::Columns { row_stride }, ticket))
    }

    /// Copy rows of many tables of one group in one call: the rows of the first table to the front of `out`,
    /// then the rows of the second, and so on. With a ticket this is a training read, as [`Store::lookup`]
    /// with bags of one id. Its backward takes gradients in the layout of the rows.
    ///
    /// # Errors
    /// As [`Store::lookup`].
    pub fn lookup_rows(
        &self,
        asked: &[AskedRows<'_>],
        out: &mut [f32],
        ticket: Option<&Ticket>,
    ) -> Result<Lookup, StoreError> {
        self.check_open()?;
        if ticket.is_some() {
            self.check_writable("a training read")?;
            check_ticket(&self.tickets, ticket)?;
        }
        asked.iter().try_for_each(|rows| rows.table.state().check_event_time())?;
        AskedRows::with_bags(self, asked, |group, bags, times| {
            let _caller = self.workers.enter();
            self.settle(group.lookup(bags, times, out, Placement::InTurn, ticket))
        })
    }

    /// As [`Store::lookup_rows`] without changing anything, like [`Store::evaluate`]: missing rows read as
    /// the values they would be created with.
    ///
    /// # Errors
    /// As [`Store::lookup`].
    pub fn evaluate_rows(
        &self,
        asked: &[AskedRows<'_>],
        out: &mut [f32],
        step: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        self.check_open()?;
        check_ticket(&self.tickets, step)?;
        AskedRows::with_bags(self, asked, |group, bags, times| {
            let _caller = self.workers.enter();
            self.settle(group.evaluate(bags, times, out, Placement::InTurn, step.map(Ticket::id)))
        })
    }

    /// The backward of [`Store::lookup`]: one optimizer step on every distinct row, from gradients in the
    /// layout of the pooled vectors. Releases the rows' clocks. `rates` holds one learning rate per feature.
    /// For a [`Store::lookup_rows`] a feature is a table, and the row stride is ignored.
    ///
    /// # Errors
    /// Wrong shapes, features of one table with different rates, or gradients that are not finite: no row is
    /// changed then. Also rows that cannot be read.
    pub fn apply(
        &self,
        lookup: &Lookup,
        gradients: &[f32],
        row_stride: usize,
        rates: &[f32],
        ticket: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        self.check_writable("an update")?;
        self.check_lookup(lookup)?;
        check_ticket(&self.tickets, ticket)?;
        let _caller = self.workers.enter();
        let change = self.changes.read();
        self.settle(lookup.group().apply(lookup, gradients, row_stride, rates, ticket))?;
        drop(change);
        self.settle(lookup.group().evict_due(&self.changes, lookup.table_states()))
    }

    /// The gradients of a lookup's distinct rows, for a later update by the caller.
    ///
    /// # Errors
    /// Wrong shapes.
    pub fn row_gradients(
        &self,
        lookup: &Lookup,
        gradients: &[f32],
        row_stride: usize,
    ) -> Result<Vec<RowGradients>, StoreError> {
        self.check_open()?;
        self.check_lookup(lookup)?;
        lookup.group().row_gradients(lookup, gradients, row_stride)
    }
}

impl Store {
    /// Check that a lookup was made by this store.
    fn check_lookup(&self, lookup: &Lookup) -> Result<(), StoreError> {
        let what = || format!("a lookup of {}", lookup.table_names().join(", "));
        self.tickets.check_own(&lookup.group().tickets, what)
    }
}

/// Bags, each with the state of its table.
type Bags<'a> = Vec<(Arc<TableState>, IdBag<'a>)>;

/// The group that all these tables share, and their bags.
fn group_of<'a, 'b>(
    store: &Store,
    bags: &[(&'a Table, IdBag<'b>)],
) -> Result<(&'a Arc<Group>, Bags<'b>), StoreError> {
    let Some((first, _)) = bags.first() else {
        return Err(StoreError::Length {
            argument: "bags",
            got: 0,
            expected: 1,
            why: "at least one feature".into(),
        });
    };
    bags.iter().try_for_each(|(table, _)| store.check_table(table))?;
    if let Some((other, _)) =
        bags.iter().find(|(table, _)| table.group().core.number != first.group().core.number)
    {
        return Err(StoreError::MixedGroups { first: first.name().into(), second: other.name().into() });
    }
    let bags = bags.iter().map(|(table, bag)| (Arc::clone(table.state()), *bag)).collect();
    Ok((first.group(), bags))
}
