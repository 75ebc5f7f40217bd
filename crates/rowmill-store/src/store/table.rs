//! A table: batched reads and changes of its rows.

use std::sync::Arc;

use rowmill_kernels::{UniqueScratch, first_non_finite, segment_unique};
use rowmill_rows::{Dtype, EvictionRule, TableSpec};

use super::request_queue::QueuedGet;
use super::store::Store;
use crate::error::StoreError;
use crate::group::{Group, Ticket, check_ticket};
use crate::lookahead::Destination;
use crate::lookup::RowPart;
use crate::metrics::Stats;
use crate::row_lifetime::Asked;
use crate::staleness::Release;
use crate::table::{Key, TableState, copy_floats, write_weights};
use crate::update::Target;

/// Which part of a row floats are written to.
#[derive(Clone, Copy)]
enum RowField {
    /// The weights.
    Weights,
    /// Floats from this byte of the row on.
    Byte(usize),
}

/// A table of a store. Every method takes a batch; ids may repeat unless a method says otherwise.
#[derive(Clone, Debug)]
pub struct Table {
    store: Arc<Store>,
    group: Arc<Group>,
    state: Arc<TableState>,
    spec: TableSpec,
}

impl Table {
    pub(crate) fn new(store: Arc<Store>, group: Arc<Group>, state: Arc<TableState>, spec: TableSpec) -> Self {
        Self { store, group, state, spec }
    }

    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    pub(crate) fn state(&self) -> &Arc<TableState> {
        &self.state
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The spec this handle was opened with.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Its number among the tables of the store, in the order of creation. Seed, category and id determine a
    /// row's initial values.
    pub fn category(&self) -> u32 {
        self.state.category.0
    }

    /// Number of the table's group. Tables of one group can share a lookup.
    pub fn group_number(&self) -> u32 {
        self.group.core.number
    }

    /// The store the table belongs to.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.group.len(self.state.local)
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Optimizer steps taken so far.
    pub fn steps(&self) -> u64 {
        self.state.steps()
    }

    /// Continue the count of optimizer steps of another table, whose rows and state this one gets: Adam corrects
    /// the bias of its state by this count. Automatic evictions are counted from here.
    ///
    /// # Errors
    /// A store that cannot be written.
    pub fn set_steps(&self, steps: u64) -> Result<(), StoreError> {
        self.store.check_writable("set_steps")?;
        self.state.restore_steps(steps);
        Ok(())
    }

    /// Bytes of a row with its optimizer state.
    pub fn row_bytes(&self) -> usize {
        self.group.core.layout.stride
    }

    /// Floats of optimizer state per row.
    pub fn state_floats(&self) -> usize {
        self.group.core.layout.state_floats
    }

    /// Whether each id has a row.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or 2^31 ids or more.
    pub fn contains(&self, ids: &[u64]) -> Result<Vec<bool>, StoreError> {
        self.store.check_open()?;
        Group::check_count(ids.len())?;
        let _caller = self.store.workers.enter();
        let keys = self.group.keys(&self.state, ids);
        let mut found = vec![false; ids.len()];
        for (shard, cell) in self.group.shards.iter().enumerate() {
            let state = cell.state.read();
            for key in keys.of_shard(shard) {
                found[key.position as usize] = state.find(key).is_some();
            }
        }
        Ok(found)
    }

    /// Copy the weights of `ids` to `out` (`dim` floats per id). An id without a row yields its initial
    /// values, and no row is created. Takes no clocks.
    ///
    /// # Errors
    /// Wrong length, ids outside a dense table, or a row that cannot be read.
    pub fn get(&self, ids: &[u64], out: &mut [f32]) -> Result<(), StoreError> {
        self.get_weights(ids, out, None)
    }

    /// As [`Table::get`], within a step. Rows announced for this step stay in memory until it reads them, and
    /// rows announced for earlier steps may leave.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn get_in_step(&self, ids: &[u64], out: &mut [f32], ticket: &Ticket) -> Result<(), StoreError> {
        check_ticket(&self.group.tickets, Some(ticket))?;
        self.get_weights(ids, out, Some(ticket.id()))
    }

    fn get_weights(&self, ids: &[u64], out: &mut [f32], step: Option<u64>) -> Result<(), StoreError> {
        self.store.check_open()?;
        self.check("out", ids, out.len(), self.spec.dim as usize)?;
        let _caller = self.store.workers.enter();
        self.store.settle(self.group.read(&self.state, ids, RowPart::Weights, out, step))
    }

    /// Copy the optimizer state of `ids` to `out` (`state_floats` floats per id).
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn get_state(&self, ids: &[u64], out: &mut [f32]) -> Result<(), StoreError> {
        self.store.check_open()?;
        self.check("out", ids, out.len(), self.state_floats())?;
        let _caller = self.store.workers.enter();
        self.store.settle(self.group.read(&self.state, ids, RowPart::State, out, None))
    }

    /// As [`Table::get`], as a training read: missing rows are created. With a ticket each row's clock is
    /// taken once, waiting for rows beyond the staleness bound.
    ///
    /// # Errors
    /// As [`Table::get`], and [`StoreError::StalenessTimeout`] and [`StoreError::StepConflict`].
    pub fn get_or_init(
        &self,
        ids: &[u64],
        out: &mut [f32],
        ticket: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        self.store.check_writable("a training read")?;
        check_ticket(&self.group.tickets, ticket)?;
        self.state.check_event_time()?;
        self.check("out", ids, out.len(), self.spec.dim as usize)?;
        let _caller = self.store.workers.enter();
        self.store.settle(self.group.fetch(&self.state, ids, out, ticket))
    }

    /// As [`Table::get_or_init`], but returns at once: the get waits in a queue until every row is within its
    /// bound. For a worker that still owes the put of an earlier step and so must not wait.
    ///
    /// # Errors
    /// Ids outside a dense table, a store that is closed or read-only, or [`StoreError::QueueFull`].
    /// [`QueuedGet::wait`] returns all other errors.
    pub fn get_later(&self, ids: &[u64], ticket: &Arc<Ticket>) -> Result<QueuedGet, StoreError> {
        self.store.check_writable("a training read")?;
        check_ticket(&self.group.tickets, Some(ticket))?;
        self.state.check_event_time()?;
        Group::check_ids(&self.state, ids)?;
        let caller = self.store.workers.enter();
        let mut lookup = self.group.prepare_fetch(&self.state, ids);
        lookup.refuse(Asked::Read);
        drop(caller);
        self.store.enqueue(self.clone(), lookup, ticket)
    }

    /// Store weights (`dim` floats per id). If an id is repeated, its last value is kept. Missing rows are
    /// created; optimizer state is unchanged. With a ticket the rows' clocks are released.
    ///
    /// # Errors
    /// Wrong length or values that are not finite (no row is changed then), or a failed write.
    pub fn put(&self, ids: &[u64], values: &[f32], ticket: Option<&Ticket>) -> Result<(), StoreError> {
        self.check("values", ids, values.len(), self.spec.dim as usize)?;
        if self.spec.dtype == Dtype::Bf16 {
            self.check_bf16(values)?;
        }
        self.write(("values", values), ids, RowField::Weights, ticket)
    }

    /// Store optimizer state (`state_floats` floats per id), as [`Table::put`] stores weights.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_state(&self, ids: &[u64], values: &[f32]) -> Result<(), StoreError> {
        self.check("values", ids, values.len(), self.state_floats())?;
        self.write(("values", values), ids, RowField::Byte(self.group.core.layout.state_offset()), None)
    }

    /// Write a part of rows, with the same number of floats per id.
    fn write(
        &self,
        (argument, values): (&'static str, &[f32]),
        ids: &[u64],
        field: RowField,
        ticket: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        self.store.check_writable("put")?;
        check_ticket(&self.group.tickets, ticket)?;
        self.state.check_event_time()?;
        if let Some(position) = first_non_finite(values) {
            return Err(StoreError::NotFinite {
                argument,
                table: self.name().to_owned(),
                value: values[position],
                position,
            });
        }
        if ids.is_empty() {
            return Ok(());
        }
        let _caller = self.store.workers.enter();
        let width = values.len() / ids.len();
        let (unique, inverse) = distinct(ids);
        let mut last = vec![0_usize; unique.len()];
        for (position, &which) in inverse.iter().enumerate() {
            last[which as usize] = position;
        }
        let release = ticket.map_or(Release::NOTHING, |ticket| Release {
            ticket: ticket.id(),
            rows: ticket.state.take(self.group.core.number, self.state.local, None, &unique),
        });
        let target = Target::Ids { table: &self.state, ids: &unique };
        let mark = self.state.mark(self.steps(), ticket.and_then(|ticket| ticket.state.event_time()));
        let _change = self.store.changes.read();
        self.store.settle(self.group.update(&target, &release, &|keys: &[Key], rows: &[*mut f32]| {
            for (key, &row) in keys.iter().zip(rows) {
                let values = &values[last[key.position as usize] * width..][..width];
                // SAFETY: `row` is a resident row of this group under its shard's write lock. It has as many
                // weights as there are values, or that many floats (of state or stamp) from this byte on.
                unsafe {
                    match field {
                        RowField::Weights => write_weights(&self.group.core.layout, values, row),
                        RowField::Byte(start) => copy_floats(values.as_ptr(), row.byte_add(start), width),
                    }
                }
            }
            if let Some(mark) = mark {
                // SAFETY: as above.
                unsafe { mark.press(&self.group.core.layout, rows) };
            }
        }))
    }

    /// Set the scores of rows, for a table whose rule evicts the rows with the lowest scores. If an id is
    /// repeated, its last score is kept. Missing rows are created; a new row has score 0.
    ///
    /// # Errors
    /// A table without this rule, wrong length, scores that are not finite, or a failed write.
    pub fn set_scores(&self, ids: &[u64], scores: &[f32]) -> Result<(), StoreError> {
        let rule = self.state.spec.eviction.map(|eviction| eviction.rule);
        let Some((EvictionRule::LowestScore { .. }, stamp)) = rule.zip(self.group.core.layout.stamp_offset())
        else {
            return Err(StoreError::Option {
                option: "eviction",
                expected: format!("LowestScore for the rows of table {:?} to have scores", self.name()),
                got: rule.map_or("None".into(), |rule| format!("{rule:?}")),
            });
        };
        self.check("scores", ids, scores.len(), 1)?;
        self.write(("scores", scores), ids, RowField::Byte(stamp), None)
    }

    /// Take one optimizer step on every distinct row of `ids` with the sum of its gradients (`dim` floats per
    /// id). The learning rate is `rate`, or the table's own if `None`. Missing rows are created first. With a
    /// ticket the rows' clocks are released.
    ///
    /// # Errors
    /// Wrong length or gradients that are not finite (no row is changed then), or a failed read or write.
    pub fn rmw(
        &self,
        ids: &[u64],
        gradients: &[f32],
        rate: Option<f32>,
        ticket: Option<&Ticket>,
    ) -> Result<(), StoreError> {
        self.store.check_writable("rmw")?;
        check_ticket(&self.group.tickets, ticket)?;
        let dim = self.spec.dim as usize;
        self.check("gradients", ids, gradients.len(), dim)?;
        if ids.is_empty() {
            return Ok(());
        }
        let _caller = self.store.workers.enter();
        let mut lookup = self.group.prepare_fetch(&self.state, ids);
        lookup.refuse(Asked::Change);
        let rate = rate.unwrap_or_else(|| self.spec.optimizer.lr());
        let change = self.store.changes.read();
        self.store.settle(self.group.apply(&lookup, gradients, dim, &[rate], ticket))?;
        drop(change);
        self.store.settle(self.group.evict_due(&self.store.changes, lookup.table_states()))
    }

    /// Delete rows. Returns how many existed. Steps that hold clocks of these rows lose them: a row created
    /// later with the same id starts with no outstanding gets.
    ///
    /// # Errors
    /// A failed write.
    pub fn delete(&self, ids: &[u64]) -> Result<usize, StoreError> {
        self.store.check_writable("delete")?;
        Group::check_ids(&self.state, ids)?;
        let _caller = self.store.workers.enter();
        let keys = self.group.keys(&self.state, ids);
        let _change = self.store.changes.read();
        let deleted = self.store.settle(self.group.delete(&keys))?;
        self.state.count_deletes(deleted);
        Ok(deleted)
    }

    /// Delete all rows that the table's eviction rule selects. Returns their ids, ascending. Rows whose clock
    /// a step holds stay. Changes of rows are blocked meanwhile. Every cold row is read, because the rule
    /// needs the stamp in the row.
    ///
    /// # Errors
    /// A table without an eviction rule, a row that cannot be read, or a failed write.
    pub fn evict(&self) -> Result<Vec<u64>, StoreError> {
        self.store.check_writable("an eviction")?;
        let _caller = self.store.workers.enter();
        self.store.settle(self.group.evict(&self.store.changes, &self.state))
    }

    /// Announce ids that will be looked up soon; see [`Store::lookahead`].
    ///
    /// # Errors
    /// As [`Store::lookahead`].
    pub fn lookahead(&self, ids: &[u64], destination: Destination) -> Result<bool, StoreError> {
        self.store.lookahead(&[(self, ids)], destination)
    }

    /// Visit every row in batches of at most `batch` rows: `visit(ids, weights)`. The order is not specified,
    /// and rows created or deleted during the scan may or may not be visited. `visit` returns whether to
    /// continue.
    ///
    /// # Errors
    /// A row that cannot be read.
    pub fn scan(
        &self,
        batch: usize,
        mut visit: impl FnMut(&[u64], &[f32]) -> bool,
    ) -> Result<(), StoreError> {
        self.store.check_open()?;
        let dim = self.spec.dim as usize;
        for cell in &self.group.shards {
            let mut ids = Vec::new();
            cell.state.read().index(self.state.local).for_each(|id, _| ids.push(id));
            for ids in ids.chunks(batch.max(1)) {
                let mut weights = vec![0.0; ids.len() * dim];
                // `visit` may take long and is not counted as a call of the store.
                let caller = self.store.workers.enter();
                let read = self.group.read(&self.state, ids, RowPart::Weights, &mut weights, None);
                drop(caller);
                self.store.settle(read)?;
                if !visit(ids, &weights) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The most looked-up ids with an estimate of their number of lookups, highest first.
    pub fn hottest(&self, count: usize) -> Vec<(u64, u64)> {
        self.state.hottest(count)
    }

    /// The metrics of the whole store.
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Check that values stay finite when rounded to bf16.
    fn check_bf16(&self, values: &[f32]) -> Result<(), StoreError> {
        // Halfway between the largest bf16 and the next power of two: from here on, rounding to nearest gives
        // infinity.
        const BEYOND: f32 = f32::from_bits(0x7f7f_8000);
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        if largest < BEYOND || largest.is_infinite() {
            return Ok(());
        }
        Err(StoreError::Option {
            option: "values",
            expected: format!("below {BEYOND:e} in table {:?}, whose dtype is bf16", self.name()),
            got: format!("{largest:e}"),
        })
    }

    fn check(&self, argument: &'static str, ids: &[u64], got: usize, width: usize) -> Result<(), StoreError> {
        Group::check_ids(&self.state, ids)?;
        let expected = ids.len() * width;
        if got == expected {
            return Ok(());
        }
        let why = format!("{} ids of table {:?} with {width} floats each", ids.len(), self.name());
        Err(StoreError::Length { argument, got, expected, why })
    }
}

fn distinct(ids: &[u64]) -> (Vec<u64>, Vec<u32>) {
    let mut unique = Vec::new();
    let mut inverse = vec![0; ids.len()];
    segment_unique(ids, None, &mut UniqueScratch::default(), &mut unique, &mut inverse);
    (unique, inverse)
}
