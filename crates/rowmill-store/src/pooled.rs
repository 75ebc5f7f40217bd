//! The calls of a store that pool rows of many tables: in training, its backward, and in evaluation.

use std::sync::Arc;

use rowmill_rows::IdBag;

use crate::StoreError;
use crate::backward::RowGradients;
use crate::group::Group;
use crate::lookup::Lookup;
use crate::store::Store;
use crate::table::Table;
use crate::table_state::TableState;
use crate::ticket::Ticket;

impl Store {
    /// Pool many features without changing anything: for evaluation and serving. As [`Store::lookup`] without a
    /// ticket, faster, and not for a backward.
    ///
    /// # Errors
    /// As [`Store::lookup`].
    pub fn evaluate(
        &self,
        bags: &[(&Table, IdBag<'_>)],
        out: &mut [f32],
        row_stride: usize,
    ) -> Result<(), StoreError> {
        self.check_open()?;
        let (group, bags) = group_of(bags)?;
        let _caller = self.workers.enter();
        self.settle(group.evaluate(&bags, out, row_stride))
    }

    /// Pool many features in one call. All tables must be of one group. Bag `b` of feature `f` is written
    /// to `out[b * row_stride + f * dim..]`. With a ticket this is a training read: missing rows are born
    /// and clocks are taken; without, missing rows read as they would be born.
    ///
    /// # Errors
    /// Wrong shapes, ids outside a dense table, a row beyond its bound until the deadline, or a failed read.
    pub fn lookup(
        &self,
        bags: &[(&Table, IdBag<'_>)],
        out: &mut [f32],
        row_stride: usize,
        ticket: Option<&Ticket>,
    ) -> Result<Lookup, StoreError> {
        self.check_open()?;
        if ticket.is_some() {
            self.check_writable("a training read")?;
            bags.iter().try_for_each(|(table, _)| table.state().check_event_time())?;
        }
        let (group, bags) = group_of(bags)?;
        let _caller = self.workers.enter();
        self.settle(group.lookup(&bags, out, row_stride, ticket))
    }

    /// The backward of [`Store::lookup`]: gradients of the pooled vectors, laid out as they were, become
    /// one optimizer step on every distinct row; the rows' clocks are given back. `rates` holds one
    /// learning rate per feature.
    ///
    /// # Errors
    /// Wrong shapes or gradients that are not finite (nothing changes then), or rows that cannot be read.
    pub fn apply(
        &self,
        lookup: &Lookup,
        gradients: &[f32],
        row_stride: usize,
        rates: &[f32],
        ticket: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        self.check_writable("an update")?;
        let _caller = self.workers.enter();
        let change = self.changes.read();
        self.settle(lookup.group().apply(lookup, gradients, row_stride, rates, ticket))?;
        drop(change);
        self.settle(lookup.group().evict_due(&self.changes, lookup))
    }

    /// The gradients of a lookup's distinct rows, for an update of one's own later.
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
        lookup.group().row_gradients(lookup, gradients, row_stride)
    }
}

/// Bags by the state of their tables.
type Bags<'a> = Vec<(Arc<TableState>, IdBag<'a>)>;

/// The group of all these tables, and their bags.
fn group_of<'a, 'b>(bags: &[(&'a Table, IdBag<'b>)]) -> Result<(&'a Arc<Group>, Bags<'b>), StoreError> {
    let Some((first, _)) = bags.first() else {
        return Err(StoreError::Length {
            argument: "bags",
            got: 0,
            expected: 1,
            why: "one feature at least".into(),
        });
    };
    if let Some((other, _)) =
        bags.iter().find(|(table, _)| table.group().core.number != first.group().core.number)
    {
        return Err(StoreError::MixedGroups { first: first.name().into(), second: other.name().into() });
    }
    let bags = bags.iter().map(|(table, bag)| (Arc::clone(table.state()), *bag)).collect();
    Ok((first.group(), bags))
}
