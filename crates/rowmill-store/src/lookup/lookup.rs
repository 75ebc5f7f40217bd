//! Fused pooled lookups: many features of one group in one call. Their backward is in [`crate::update`].
//!
//! Ids are deduplicated per table (`FusedRec`, Section 3: segment unique with inverse) and resolved to
//! addresses. Bags are summed straight from these addresses.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use rowmill_kernels::{Lookups, RowPtr, SKIP, UniqueScratch, segment_unique};
use rowmill_log::Reading;
use rowmill_rows::{IdBag, Pooling};

use super::acquire::{Blocked, Clocks, Entered, Wish};
use super::out::{Out, Pooled};
use super::placement::Placement;
use crate::error::StoreError;
use crate::group::{Group, Known, Ticket};
use crate::memory::Claim;
use crate::row_lifetime::{Asked, DistinctIds};
use crate::staleness::NO_LOOKUP;
use crate::table::{Key, Keys, TableState};

/// Bytes per id of a lookup's lists: distinct ids, their keys, addresses and misses.
const LIST_BYTES: usize = 96;
/// Floats pooled per task when a call is spread over threads.
const POOL_TASK_FLOATS: usize = 1 << 16;

/// A fused lookup, with all that its backward needs.
#[derive(Debug)]
pub struct Lookup {
    pub(crate) group: Arc<Group>,
    pub(crate) serial: u64,
    pub(crate) features: Vec<Feature>,
    /// Whether vectors and gradients lie one after the other ([`Placement::InTurn`]).
    in_turn: bool,
    pub(crate) tables: Vec<TableRows>,
    /// The distinct rows of all tables, without refused ids. Built on first use.
    pub(crate) keys: OnceLock<Keys>,
    /// Keys of refused ids, which were asked for too rarely.
    pub(crate) refused: Vec<Key>,
    /// Index entries that a training read found, by shard.
    pub(crate) known: Vec<Option<Known>>,
    /// Memory claim of these lists.
    _lists: Claim,
}

/// One feature of a lookup.
#[derive(Debug)]
pub(crate) struct Feature {
    /// Position in `Lookup::tables`.
    pub(crate) table: usize,
    /// First lookup of the feature, among the lookups of its table.
    pub(crate) begin: usize,
    /// First float of the feature's first bag in the output and in the gradients.
    pub(crate) first: usize,
    pub(crate) offsets: Vec<i64>,
    pub(crate) weights: Option<Vec<f32>>,
    pub(crate) pooling: Pooling,
}

impl Feature {
    /// The range of the feature's lookups, among the lookups of its table.
    pub(crate) fn lookups(&self) -> Range<usize> {
        self.begin..self.begin + *self.offsets.last().expect("validated") as usize
    }
}

/// The distinct rows of one table in a lookup.
#[derive(Debug)]
pub(crate) struct TableRows {
    pub(crate) table: Arc<TableState>,
    /// Distinct ids, in the order of first occurrence.
    pub(crate) unique: Arc<[u64]>,
    /// For each lookup of the table's features: its position in `unique`.
    pub(crate) inverse: Vec<u32>,
    /// Position of the first unique row among the keys of the whole lookup.
    pub(crate) base: usize,
}

/// The ids of one table in a lookup: its padding id, the ids by feature, and their number.
type TableIds<'a> = (Arc<TableState>, Option<u64>, Vec<&'a [u64]>, usize);

impl Lookup {
    /// Number of distinct rows.
    pub fn rows(&self) -> usize {
        self.tables.iter().map(|rows| rows.unique.len()).sum::<usize>() - self.refused.len()
    }

    /// Number of features.
    pub fn features(&self) -> usize {
        self.features.len()
    }

    /// Names of the tables, each once.
    pub fn table_names(&self) -> Vec<&str> {
        self.tables.iter().map(|table| table.table.name.as_str()).collect()
    }

    /// The tables, each once.
    pub(crate) fn table_states(&self) -> impl Iterator<Item = &Arc<TableState>> {
        self.tables.iter().map(|rows| &rows.table)
    }

    /// Remove the keys of refused ids.
    pub(crate) fn refuse(&mut self, asked: Asked) {
        if self.tables.iter().all(|rows| rows.table.spec.admission.is_none()) {
            return;
        }
        let tables: Vec<_> = self
            .tables
            .iter()
            .map(|rows| DistinctIds { table: &rows.table, ids: &rows.unique, first: rows.base })
            .collect();
        let refused = self.group.refused(self.keys(), &tables, asked);
        if !refused.is_empty() {
            let mut marks = vec![false; self.keys().positions()];
            for key in &refused {
                marks[key.position as usize] = true;
            }
            self.keys = self.keys().without(&marks).into();
        }
        self.refused = refused;
    }
}

impl Group {
    /// Pool the rows of `bags` into `out`. With a ticket this is a training read: missing rows are created
    /// and clocks taken. `times` gives, per feature, how often each id was asked for; once if `None`.
    pub(crate) fn lookup<T: Pooled>(
        self: &Arc<Self>,
        bags: &[(Arc<TableState>, IdBag<'_>)],
        times: Option<&[&[u32]]>,
        out: &mut [T],
        placement: Placement,
        ticket: Option<&Ticket>,
    ) -> Result<Lookup, StoreError> {
        self.check_out(bags, out.len(), placement)?;
        bags.iter().try_for_each(|(table, bag)| Self::check_ids_padded(table, bag))?;
        let lookups = Self::count_accesses(bags, times);
        // SAFETY: `out` has room for every bag (checked) and is borrowed for this call.
        let lookup = unsafe { self.pool_distinct(bags, T::out(out), placement, ticket)? };
        self.counters.count_call(lookups, lookup.rows());
        Ok(lookup)
    }

    /// Count how often ids are asked for. Returns the number of lookups.
    pub(crate) fn count_accesses(bags: &[(Arc<TableState>, IdBag<'_>)], times: Option<&[&[u32]]>) -> usize {
        let count = |(number, (table, bag)): (usize, &(Arc<TableState>, IdBag<'_>))| match times {
            None => table.count_accesses(bag.ids),
            Some(times) => table.count_repeated(bag.ids, times[number]),
        };
        bags.iter().enumerate().map(count).sum()
    }

    /// The work of [`Group::lookup`] after its shapes are checked: deduplicate ids and pool their rows.
    ///
    /// # Safety
    /// `out` has room for the vectors of all bags at `placement`, and no other thread accesses it meanwhile.
    pub(crate) unsafe fn pool_distinct(
        self: &Arc<Self>,
        bags: &[(Arc<TableState>, IdBag<'_>)],
        out: Out,
        placement: Placement,
        ticket: Option<&Ticket>,
    ) -> Result<Lookup, StoreError> {
        let row_stride = placement.stride(self.core.layout.dim);
        let mut lookup = self.prepare(bags, placement)?;
        if ticket.is_some() {
            lookup.refuse(Asked::Read);
        }
        let reading = self.core.log.reading();
        let mut wish = self.wish(&lookup, ticket)?;
        wish.notes = ticket.is_some();
        let mut entered = self.enter(lookup.keys(), &mut wish)?;
        entered.unseen.extend(&lookup.refused);
        let known = std::mem::take(&mut entered.known);
        let whole = self.try_with_rows(&reading, lookup.keys(), entered, |rows| {
            self.pool(&lookup, rows, out, row_stride);
        });
        let pooled = match whole {
            Ok(None) => self.pool_in_pieces(&reading, &lookup, out, row_stride),
            whole => whole.map(drop),
        };
        if let Err(error) = pooled {
            self.leave(lookup.keys(), &wish);
            return Err(error);
        }
        self.record(&lookup, &wish);
        lookup.known = known;
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
        let mut lookup = self.prepare_fetch(table, ids);
        lookup.refuse(Asked::Read);
        let reading = self.core.log.reading();
        let mut wish = self.wish(&lookup, ticket)?;
        wish.births = true;
        let entered = self.enter(lookup.keys(), &mut wish)?;
        self.copy_entered(&reading, &lookup, &wish, entered, out)
    }

    /// The weights that [`Group::fetch`] would copy for a prepared lookup, or the row that is beyond its
    /// bound.
    pub(crate) fn try_fetch(
        &self,
        lookup: &Lookup,
        ticket: &Ticket,
    ) -> Result<Result<Vec<f32>, Blocked>, StoreError> {
        let reading = self.core.log.reading();
        let mut wish = self.wish(lookup, Some(ticket))?;
        wish.queued = true;
        match self.try_enter(lookup.keys(), &wish)? {
            Ok(entered) => {
                let mut rows = vec![0.0; lookup.tables[0].inverse.len() * self.core.layout.dim];
                self.copy_entered(&reading, lookup, &wish, entered, &mut rows).map(|()| Ok(rows))
            }
            Err(blocked) => Ok(Err(blocked)),
        }
    }

    /// A lookup of rows of one table, each as a bag of one id.
    pub(crate) fn prepare_fetch(self: &Arc<Self>, table: &Arc<TableState>, ids: &[u64]) -> Lookup {
        table.count_accesses(ids);
        let feature = Feature {
            table: 0,
            begin: 0,
            first: 0,
            offsets: (0..=ids.len() as i64).collect(),
            weights: None,
            pooling: Pooling::Sum,
        };
        let lookup = self.distinct(&[(Arc::clone(table), None, vec![ids], ids.len())], vec![feature]);
        self.counters.count_call(ids.len(), lookup.rows());
        lookup
    }

    fn copy_entered(
        &self,
        reading: &Reading<'_>,
        lookup: &Lookup,
        wish: &Wish<'_>,
        mut entered: Entered,
        out: &mut [f32],
    ) -> Result<(), StoreError> {
        entered.unseen.extend(&lookup.refused);
        let whole = self.try_with_rows(reading, lookup.keys(), entered, |rows| {
            let inverse = &lookup.tables[0].inverse;
            let rows: Vec<RowPtr> = inverse.iter().map(|&unique| rows[unique as usize]).collect();
            // SAFETY: `try_with_rows` guarantees readable weights at every address.
            unsafe { self.gather(&rows, out) };
        });
        let copied = match whole {
            Ok(None) => self.copy_in_pieces(reading, lookup, out),
            whole => whole.map(drop),
        };
        if let Err(error) = copied {
            self.leave(lookup.keys(), wish);
            return Err(error);
        }
        self.record(lookup, wish);
        Ok(())
    }

    /// Copy the weights of rows of one table in pieces, so that the cold rows of one piece fit the memory for
    /// them.
    fn copy_in_pieces(
        &self,
        reading: &Reading<'_>,
        lookup: &Lookup,
        out: &mut [f32],
    ) -> Result<(), StoreError> {
        let TableRows { table, unique, inverse, .. } = &lookup.tables[0];
        let dim = self.core.layout.dim;
        let (mut inverse, mut out) = (&inverse[..], out);
        while !inverse.is_empty() {
            let rows = self.cold_piece().min(inverse.len());
            let (piece, rest) = inverse.split_at(rows);
            let (out_piece, out_rest) = out.split_at_mut(rows * dim);
            let ids: Vec<u64> = piece.iter().map(|&row| unique[row as usize]).collect();
            let keys = self.keys(table, &ids);
            let entered = self.enter(&keys, &mut Wish::default())?;
            // SAFETY: `with_rows` guarantees readable weights at every address.
            self.with_rows(reading, &keys, entered, |rows| unsafe { self.gather(rows, out_piece) })?;
            (inverse, out) = (rest, out_rest);
        }
        Ok(())
    }

    /// Copy the weights of rows to `out`, which holds `dim` floats per row (checked by the caller).
    ///
    /// # Safety
    /// Every address belongs to a row of this group with readable weights.
    unsafe fn gather(&self, rows: &[RowPtr], out: &mut [f32]) {
        let dim = self.core.layout.dim;
        // SAFETY: by the contract of this function.
        unsafe { rowmill_kernels::gather(rows, self.core.layout.dtype, dim, out, dim) };
    }

    /// Check the shapes of a lookup.
    pub(crate) fn check_out(
        &self,
        bags: &[(Arc<TableState>, IdBag<'_>)],
        len: usize,
        placement: Placement,
    ) -> Result<(), StoreError> {
        for (table, bag) in bags {
            bag.validate().map_err(|source| StoreError::Bag { table: table.name.clone(), source })?;
        }
        Self::check_count(bags.iter().map(|(_, bag)| bag.ids.len()).sum())?;
        placement.check("out", len, bags.iter().map(|(_, bag)| bag.len()), self.core.layout.dim)
    }

    pub(crate) fn check_ids_padded(table: &TableState, bag: &IdBag<'_>) -> Result<(), StoreError> {
        match bag.padding {
            None => Self::check_ids(table, bag.ids),
            Some(padding) => {
                let ids: Vec<u64> = bag.ids.iter().copied().filter(|&id| id != padding).collect();
                Self::check_ids(table, &ids)
            }
        }
    }

    /// The distinct rows of every table, and the range of each feature's lookups.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        bags: &[(Arc<TableState>, IdBag<'_>)],
        placement: Placement,
    ) -> Result<Lookup, StoreError> {
        let firsts = placement.firsts(bags.iter().map(|(_, bag)| bag.len()), self.core.layout.dim);
        let mut ids_of: Vec<TableIds<'_>> = Vec::new();
        let mut features = Vec::with_capacity(bags.len());
        for ((table, bag), first) in bags.iter().zip(firsts) {
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
                first,
                offsets: bag.offsets.to_vec(),
                weights: bag.weights.map(<[f32]>::to_vec),
                pooling: bag.pooling,
            });
            ids.push(bag.ids);
            *lookups += bag.ids.len();
        }
        let mut lookup = self.distinct(&ids_of, features);
        lookup.in_turn = matches!(placement, Placement::InTurn);
        Ok(lookup)
    }

    /// A lookup of these ids, deduplicated.
    fn distinct(self: &Arc<Self>, ids_of: &[TableIds<'_>], features: Vec<Feature>) -> Lookup {
        let total: usize = ids_of.iter().map(|(.., lookups)| lookups).sum();
        let lists = self.claim_lists(total * LIST_BYTES);
        let mut tables = self.workers.map(total, ids_of.len(), |number| {
            thread_local! {
                static SCRATCH: std::cell::RefCell<UniqueScratch> = std::cell::RefCell::default();
            }
            let (table, padding, ids, lookups) = &ids_of[number];
            let joined: Vec<u64>;
            let ids = if let [ids] = ids[..] {
                ids
            } else {
                joined = ids.concat();
                &joined
            };
            let mut unique = Vec::new();
            let mut inverse = vec![0; *lookups];
            SCRATCH.with_borrow_mut(|scratch| {
                segment_unique(ids, *padding, scratch, &mut unique, &mut inverse);
            });
            TableRows { table: Arc::clone(table), unique: unique.into(), inverse, base: 0 }
        });
        let mut base = 0;
        for rows in &mut tables {
            rows.base = base;
            base += rows.unique.len();
        }
        let serial = self.serial.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Lookup {
            group: Arc::clone(self),
            serial,
            features,
            in_turn: false,
            tables,
            keys: OnceLock::new(),
            refused: Vec::new(),
            known: Vec::new(),
            _lists: lists,
        }
    }

    fn wish<'a>(&self, lookup: &Lookup, ticket: Option<&'a Ticket>) -> Result<Wish<'a>, StoreError> {
        let clocks = ticket.map(|ticket| self.clocks(lookup, ticket)).transpose()?;
        let bounds = self.tables.read().iter().map(|table| table.bound()).collect();
        Ok(Wish { births: ticket.is_some(), clocks, notes: false, bounds, queued: false })
    }

    /// The clocks that a lookup takes for a ticket.
    fn clocks<'a>(&self, lookup: &Lookup, ticket: &'a Ticket) -> Result<Clocks<'a>, StoreError> {
        let (state, group) = (&*ticket.state, self.core.number);
        let mut clocks = Clocks { ticket: state, call: (group, lookup.serial), fresh: None };
        let mut wanted = 0;
        for rows in &lookup.tables {
            let marks = state.fresh(group, rows.table.local, &rows.unique);
            if let Some(marks) = &marks {
                let fresh = clocks.fresh.get_or_insert_with(|| vec![true; lookup.keys().positions()]);
                fresh[rows.base..rows.base + marks.len()].copy_from_slice(marks);
            }
            if rows.table.bound().is_some() {
                wanted +=
                    marks.map_or(rows.unique.len(), |marks| marks.iter().filter(|&&fresh| fresh).count());
            }
        }
        state.check_room(wanted)?;
        Ok(clocks)
    }

    /// Record in the ticket the rows whose clocks the call took.
    fn record(&self, lookup: &Lookup, wish: &Wish<'_>) {
        let Some(clocks) = &wish.clocks else { return };
        let group = self.core.number;
        for rows in lookup.tables.iter().filter(|rows| rows.table.bound().is_some()) {
            let table = rows.table.local;
            let mut positions = rows.base as u32..(rows.base + rows.unique.len()) as u32;
            let all = positions.all(|position| clocks.takes(position))
                && lookup.refused.iter().all(|key| key.table != table);
            let twice = if all {
                clocks.ticket.add(group, table, lookup.serial, &rows.unique)
            } else {
                let taken = |key: &&Key| key.table == table && clocks.takes(key.position);
                let taken: Arc<[u64]> = lookup.keys().iter().filter(taken).map(|key| key.id).collect();
                if taken.is_empty() {
                    continue;
                }
                clocks.ticket.add(group, table, NO_LOOKUP, &taken)
            };
            if !twice.is_empty() {
                self.release(clocks.ticket.id(), table, &twice);
            }
        }
    }

    /// Pool all bags, given the addresses of all rows.
    fn pool(&self, lookup: &Lookup, rows: &[RowPtr], out: Out, row_stride: usize) {
        struct Rows<'a>(&'a [RowPtr]);
        // SAFETY: the addresses are only read, and stay valid for the whole call (`with_rows`).
        unsafe impl Sync for Rows<'_> {}
        let rows = Rows(rows);
        let task = |number: usize, from: usize, to: usize| {
            let rows = &rows;
            let table = &lookup.tables[lookup.features[number].table];
            let rows = &rows.0[table.base..table.base + table.unique.len()];
            self.pool_bags(lookup, number, from..to, rows, out, row_stride);
        };
        let lookups = lookup.lookups();
        if !self.workers.share(lookups) {
            for (number, feature) in lookup.features.iter().enumerate() {
                task(number, 0, feature.offsets.len() - 1);
            }
            return;
        }
        let mut tasks = Vec::new();
        for (number, feature) in lookup.features.iter().enumerate() {
            let bags = feature.offsets.len() - 1;
            let floats = (*feature.offsets.last().expect("validated") as usize * self.core.layout.dim).max(1);
            let step = (bags * POOL_TASK_FLOATS / floats).max(1);
            tasks.extend((0..bags).step_by(step).map(|from| (number, from, (from + step).min(bags))));
        }
        self.workers.for_each(lookups, tasks.len(), |number| {
            let (number, from, to) = tasks[number];
            task(number, from, to);
        });
    }

    /// Pool some bags of one feature. `rows` are the addresses of its table's distinct rows.
    fn pool_bags(
        &self,
        lookup: &Lookup,
        number: usize,
        bags: Range<usize>,
        rows: &[RowPtr],
        out: Out,
        row_stride: usize,
    ) {
        let feature = &lookup.features[number];
        let lookups = Lookups {
            inverse: &lookup.tables[feature.table].inverse[feature.lookups()],
            offsets: &feature.offsets[bags.start..=bags.end],
            weights: feature.weights.as_deref(),
            pooling: feature.pooling,
        };
        // SAFETY: inverse positions are below the number of the table's distinct rows. Their addresses have
        // readable weights where these bags need them; offsets were validated; `out` has room for the last
        // bag of the last feature (checked), and no two tasks write the same floats.
        unsafe {
            let first = out.add(feature.first + bags.start * row_stride);
            first.pool(rows, &lookups, &self.core.layout, row_stride);
        }
    }

    /// Pool in pieces, so that the cold rows of one piece fit the memory for them.
    fn pool_in_pieces(
        &self,
        reading: &Reading<'_>,
        lookup: &Lookup,
        out: Out,
        row_stride: usize,
    ) -> Result<(), StoreError> {
        for (number, feature) in lookup.features.iter().enumerate() {
            let table = &lookup.tables[feature.table];
            let bags = feature.offsets.len() - 1;
            let mut piece_of = vec![u32::MAX; table.unique.len()];
            let mut needed: Vec<u32> = Vec::new();
            let (mut begin, mut piece, mut rows_max) = (0, 0, self.cold_piece());
            for bag in 0..bags {
                let lookups = feature.begin + feature.offsets[bag] as usize
                    ..feature.begin + feature.offsets[bag + 1] as usize;
                if needed.len() + lookups.len() > rows_max && bag > begin {
                    self.pool_piece(reading, lookup, number, begin..bag, &needed, out, row_stride)?;
                    needed.clear();
                    (begin, piece, rows_max) = (bag, piece + 1, self.cold_piece());
                }
                for &unique in &table.inverse[lookups] {
                    if unique != SKIP && std::mem::replace(&mut piece_of[unique as usize], piece) != piece {
                        needed.push(unique);
                    }
                }
            }
            self.pool_piece(reading, lookup, number, begin..bags, &needed, out, row_stride)?;
        }
        Ok(())
    }

    /// Pool the bags of one piece, which need the distinct rows `needed` of their table.
    #[allow(clippy::too_many_arguments)]
    fn pool_piece(
        &self,
        reading: &Reading<'_>,
        lookup: &Lookup,
        number: usize,
        bags: Range<usize>,
        needed: &[u32],
        out: Out,
        row_stride: usize,
    ) -> Result<(), StoreError> {
        let table = &lookup.tables[lookup.features[number].table];
        let ids: Vec<u64> = needed.iter().map(|&unique| table.unique[unique as usize]).collect();
        let keys = self.keys(&table.table, &ids);
        let entered = self.enter(&keys, &mut Wish::default())?;
        self.with_rows(reading, &keys, entered, |found| {
            let mut rows = vec![std::ptr::null(); table.unique.len()];
            for (&unique, &row) in needed.iter().zip(found) {
                rows[unique as usize] = row;
            }
            self.pool_bags(lookup, number, bags, &rows, out, row_stride);
        })
    }
}

impl Lookup {
    /// The distinct rows, without refused ids.
    pub(crate) fn keys(&self) -> &Keys {
        self.keys.get_or_init(|| {
            let unique: Vec<(u32, &[u64])> =
                self.tables.iter().map(|rows| (rows.table.local, &rows.unique[..])).collect();
            self.group.keys_of(&unique)
        })
    }

    /// Placement of the gradients of its vectors; `row_stride` is used for columns only.
    pub(crate) fn placement(&self, row_stride: usize) -> Placement {
        if self.in_turn { Placement::InTurn } else { Placement::Columns { row_stride } }
    }

    /// Number of lookups of all features together, duplicates counted.
    pub(crate) fn lookups(&self) -> usize {
        self.tables.iter().map(|rows| rows.inverse.len()).sum()
    }

    /// The group this lookup belongs to.
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }
}
