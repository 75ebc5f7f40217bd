//! A group: tables of one spec, with their rows spread over shards.
//!
//! The lock of a shard protects its rows, index and clocks. Locks of shards are taken one at a time, or all
//! in ascending order for reading. No thread reads a device while holding one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rowmill_index::{Location, TableIndex};
use rowmill_rows::{IdRange, RowKey};
use rowmill_sync::{Gate, Mutex, RwLock, ranks};

use crate::error::StoreError;
use crate::memory::{Budget, Claim};
use crate::metrics::Counters;
use crate::shard::{Core, IndexSize, SLOTS_MIN, Shard};
use crate::staleness::{Held, Tickets};
use crate::table::{Keys, TableIds, TableState};
use crate::threads::Workers;

/// Hashing spreads rows over shards evenly. A shard almost never exceeds its mean by more than this many
/// standard deviations.
const SHARD_DEVIATIONS: f64 = 4.0;
/// Maximum ids of one call: kernels number ids with 31 bits.
const IDS_MAX: usize = (1 << 31) - 1;

/// A shard with its lock and gate, on separate cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ShardCell {
    pub(crate) state: RwLock<Shard, ranks::Shard>,
    pub(crate) gate: Gate,
    /// Tickets that wait for a row of this shard, with the row that each waits for.
    pub(crate) waiting: Mutex<BTreeMap<u64, Held>, ranks::ShardWaiting>,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) core: Core,
    pub(crate) shards: Box<[ShardCell]>,
    pub(crate) tables: RwLock<Vec<Arc<TableState>>, ranks::GroupTables>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) wait_deadline: std::time::Duration,
    /// The next number of a lookup.
    pub(crate) serial: AtomicU64,
    /// The segments that the log had written when a writer last checked the space of the log.
    pub(crate) segments_checked: AtomicU64,
}

/// All groups of a store by number.
pub(crate) type Groups = Arc<RwLock<Vec<Arc<Group>>, ranks::Groups>>;
/// A table with its group.
pub(crate) type GroupTable = (Arc<Group>, Arc<TableState>);

/// Maximum number of shards in a group.
pub(crate) const SHARDS_MAX: usize = 16;

/// Number of shards of a group: enough that threads rarely contend, few enough that each shard has many rows
/// to choose from when one must leave.
pub(crate) fn shards_for(row_bytes: u64, stride: usize) -> usize {
    const SLOTS_PER_SHARD: u64 = 512;
    let slots = row_bytes / stride as u64;
    let wanted = (slots / SLOTS_PER_SHARD).clamp(1, SHARDS_MAX as u64) as usize;
    if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 }
}

impl Group {
    pub(crate) fn new(
        core: Core,
        tickets: Arc<Tickets>,
        workers: Arc<Workers>,
        counters: Arc<Counters>,
        wait_deadline: std::time::Duration,
    ) -> Result<Self, StoreError> {
        let row_bytes = core.budget.row_target().max(core.budget.memory().min(1 << 46));
        let slots_max =
            ((row_bytes as usize / core.layout.stride) / core.shards * 5 / 4 + SLOTS_MIN).min(1 << 30);
        let expected_bytes = core.budget.row_target() as usize / core.shards;
        let shards = (0..core.shards)
            .map(|number| {
                // Numbered across all groups, because the cut of a checkpoint locks every shard of the store.
                let number = core.number * SHARDS_MAX as u32 + number as u32;
                Ok(ShardCell {
                    state: RwLock::numbered(number, Shard::new(&core, slots_max, expected_bytes)?),
                    gate: Gate::default(),
                    waiting: Mutex::default(),
                })
            })
            .collect::<Result<_, StoreError>>()?;
        Ok(Self {
            core,
            shards,
            tables: RwLock::default(),
            tickets,
            workers,
            counters,
            wait_deadline,
            serial: AtomicU64::new(1),
            segments_checked: AtomicU64::new(0),
        })
    }

    /// Add a table: every shard gets an index for it. The caller holds the lock on the store's tables, so
    /// tables are added one at a time. The number of the table is published once every shard has its index.
    pub(crate) fn add_table(&self, table: &Arc<TableState>) {
        for (number, cell) in self.shards.iter().enumerate() {
            let index = TableIndex::new(table.spec.ids, number, self.shards.len());
            cell.state.write().add_table(&self.core, Arc::clone(table), index);
        }
        let mut tables = self.tables.write();
        debug_assert_eq!(table.local as usize, tables.len());
        tables.push(Arc::clone(table));
    }

    /// Reserve index memory for the `rows` of a table that is being opened, as far as the budget allows.
    /// Without this the growing index would move its entries several times.
    pub(crate) fn reserve(&self, table: u32, rows: u64, size: IndexSize) {
        let rows = match size {
            IndexSize::Roomy => self.rows_in_shard(rows),
            IndexSize::Exact => rows as usize / self.shards.len(),
        };
        for cell in &self.shards {
            cell.state.write().reserve(&self.core, table, rows, size);
        }
    }

    /// Bytes of the index of a table with `rows` rows.
    pub(crate) fn index_bytes_for(&self, ids: IdRange, rows: u64) -> u64 {
        let (shards, rows) = (self.shards.len(), self.rows_in_shard(rows));
        (0..shards).map(|shard| TableIndex::bytes_for(ids, rows, shard, shards) as u64).sum()
    }

    /// Bytes of the index of a table with `rows` rows, if it has no room for more.
    pub(crate) fn index_bytes_least(&self, ids: IdRange, rows: u64) -> u64 {
        match ids {
            // Pages of all shards hold at least as much as pages of one.
            IdRange::Sparse => TableIndex::bytes_for(ids, rows as usize, 0, 1) as u64,
            IdRange::Dense { .. } => self.index_bytes_for(ids, rows),
        }
    }

    /// Estimated rows of the fullest shard, of `rows` in total.
    fn rows_in_shard(&self, rows: u64) -> usize {
        let mean = rows.min(u64::from(Location::ROW_MAX)) as f64 / self.shards.len() as f64;
        (mean + SHARD_DEVIATIONS * mean.sqrt()) as usize
    }

    /// The key of an id of a table.
    pub(crate) fn key(&self, table: u32, id: u64) -> RowKey {
        RowKey { category: self.tables.read()[table as usize].category, id }
    }

    /// The rows of one table, grouped by shard.
    pub(crate) fn keys(&self, table: &TableState, ids: &[u64]) -> Keys {
        self.keys_of(&[(table.local, ids)])
    }

    /// The rows of several tables, grouped by shard.
    pub(crate) fn keys_of(&self, ids: &[(u32, &[u64])]) -> Keys {
        let tables = self.tables.read();
        let ids: Vec<TableIds<'_>> = ids
            .iter()
            .map(|&(table, ids)| TableIds { table, range: tables[table as usize].spec.ids, ids })
            .collect();
        let rows = ids.iter().map(|table| table.ids.len()).sum();
        let workers = self.workers.share(rows).then_some(&*self.workers);
        Keys::new(&ids, 0, self.shards.len(), workers)
    }

    /// Run `work` for every shard that has rows of `keys`, on several threads if that pays. Returns the
    /// results by shard.
    pub(crate) fn for_each_shard<T: Send>(
        &self,
        keys: &Keys,
        work: impl Fn(usize) -> T + Sync,
    ) -> Vec<(usize, T)> {
        let busy: Vec<usize> =
            (0..self.shards.len()).filter(|&shard| !keys.of_shard(shard).is_empty()).collect();
        self.workers.map(keys.len(), busy.len(), |number| (busy[number], work(busy[number])))
    }

    /// Release clocks of a ticket without changing rows.
    pub(crate) fn release(&self, ticket: u64, table: u32, ids: &[u64]) {
        let keys = self.keys_of(&[(table, ids)]);
        for (shard, cell) in self.shards.iter().enumerate() {
            if keys.of_shard(shard).is_empty() {
                continue;
            }
            let mut state = cell.state.write();
            for key in keys.of_shard(shard) {
                state.release_clock_of(ticket, key);
            }
            drop(state);
            cell.gate.open();
        }
        self.tickets.gate.open();
    }

    /// Claim memory for lists of a call, as far as available. A call that needs more proceeds anyway, since
    /// its caller holds lists of the same length.
    pub(crate) fn claim_lists(&self, bytes: usize) -> Claim {
        self.making_room(|budget| budget.lists.claim(bytes as u64, 0))
    }

    /// Claim working memory. If that leaves less memory for rows, spill rows.
    pub(crate) fn making_room<T>(&self, claim: impl FnOnce(&Budget) -> T) -> T {
        let budget = &*self.core.budget;
        let before = budget.row_limit();
        let claim = claim(budget);
        if budget.row_limit() < before {
            // A failed spill is reported by the next change of a row.
            let _ = self.shrink_if_over();
        }
        claim
    }

    /// Number of rows of a table.
    pub(crate) fn len(&self, table: u32) -> usize {
        self.shards.iter().map(|cell| cell.state.read().index(table).len()).sum()
    }

    /// Check that a call does not have too many ids.
    ///
    /// # Errors
    /// [`StoreError::Option`] with the number of ids and the limit.
    pub(crate) fn check_count(ids: usize) -> Result<(), StoreError> {
        if ids <= IDS_MAX {
            return Ok(());
        }
        Err(StoreError::Option {
            option: "ids",
            expected: format!("at most {IDS_MAX} in one call"),
            got: ids.to_string(),
        })
    }

    /// Check that every id is in the id range of the table.
    ///
    /// # Errors
    /// [`StoreError::IdRange`] with the first id outside the range, or as [`Group::check_count`].
    pub(crate) fn check_ids(table: &TableState, ids: &[u64]) -> Result<(), StoreError> {
        Self::check_count(ids.len())?;
        let IdRange::Dense { rows } = table.spec.ids else { return Ok(()) };
        // The loop never exits early, so that it vectorizes. The search for the id runs only for the error.
        let largest = ids.iter().fold(0, |largest, &id| largest.max(id));
        if largest < rows {
            return Ok(());
        }
        let id = ids.iter().copied().find(|&id| id >= rows).unwrap_or(largest);
        Err(StoreError::IdRange { table: table.name.clone(), id: id as i64, rows })
    }
}
