//! Shares: copies the rows that one of many ranks owns into the store of that rank.
//!
//! To redistribute tables from the stores of N ranks to M ranks, each of the M stores takes its share of each
//! of the N. A share is read like changes: in pieces, without the index of the store that it comes from.

use std::collections::HashMap;
use std::sync::Arc;

use rowmill_kernels::Owner;

use super::changes::{ChangedRows, Changes, apply};
use crate::error::StoreError;
use crate::files::{self, TableEntry};
use crate::store::{Store, Table};
use crate::table::HotRows;

/// Which rank takes its rows, of how many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The rank that takes its rows.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Whether the counters of tables are copied, too. Set this for one of the ranks, so that sums over all
    /// ranks stay equal.
    pub counters: bool,
}

/// Which ranks take the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// Each row belongs to the rank that a hash of this category and its id selects.
    Hash(u64),
    /// All rows belong to one rank.
    Rank(u32),
    /// Every rank takes all rows, and all counters.
    Every,
    /// These rows and counters are copies of those of another part: no rank takes them.
    Copied,
}

/// A table that receives rows.
struct Taking {
    table: Table,
    keeper: Keeper,
    share: Share,
    /// Its counters after the copy.
    counts: TableEntry,
}

impl Changes {
    /// Write those rows of all changes since 0 that a rank owns into its store. Also copies their state and
    /// stamps, the steps of every table, the event time, sketches, and sampled counts of hot ids. Tables that
    /// `target` lacks are created, so the first share determines their order. Nothing is saved.
    ///
    /// # Arguments
    /// `keeper`: which ranks take a table's rows, given the table's name.
    ///
    /// # Errors
    /// As [`Changes::replay`], and [`StoreError::SpecMismatch`] when `target` has other tables.
    ///
    /// # Panics
    /// When these are not the changes since checkpoint 0.
    pub fn replay_share(
        &self,
        target: &Arc<Store>,
        share: Share,
        keeper: &dyn Fn(&str) -> Keeper,
    ) -> Result<u64, StoreError> {
        assert_eq!(self.since(), 0, "a share is taken of all rows, since checkpoint 0");
        if let Some(time) = self.manifest.event_time {
            target.events.advance(time);
        }
        let mut takings = HashMap::new();
        for entry in &self.manifest.tables {
            let taking = self.begin_taking(target, entry, keeper(&entry.name), share)?;
            takings.insert(entry.name.as_str(), taking);
        }
        let (mut taken, mut failure) = (0, None);
        self.for_each(usize::MAX, |changed| {
            match takings[changed.table].take(&changed) {
                Ok(rows) => taken += rows,
                Err(error) => failure = Some(error),
            }
            failure.is_none()
        })?;
        // Rows that were copied do not count as births.
        for taking in takings.values() {
            taking.table.state().restore_counts(&taking.counts);
        }
        failure.map_or(Ok(taken), Err)
    }

    fn begin_taking(
        &self,
        target: &Arc<Store>,
        entry: &TableEntry,
        keeper: Keeper,
        share: Share,
    ) -> Result<Taking, StoreError> {
        let table = target.table(&entry.name, &entry.spec)?;
        let state = table.state();
        if state.category != entry.category {
            // Initial values and sketches depend on the category.
            return Err(StoreError::SpecMismatch {
                table: entry.name.clone(),
                field: "category",
                stored: state.category.0.to_string(),
                given: entry.category.0.to_string(),
            });
        }
        state.restore_steps(state.steps().max(entry.steps));
        if let Some(sketch) = &state.sketch
            && let Some(counters) =
                self.manifest.sketches.iter().find(|s| s.name == entry.category.0.to_string())
            && !sketch.lock().merge(&files::load_attachment(&*self.volume, counters)?)
        {
            let what =
                format!("{} does not have the size of the sketch of table {:?}", counters.file, entry.name);
            return Err(StoreError::Corrupt { what });
        }
        let counted = match keeper {
            Keeper::Hash(_) | Keeper::Rank(_) => share.counters,
            Keeper::Every => true,
            Keeper::Copied => false,
        };
        let of = |count: u64| if counted { count } else { 0 };
        let owned = entry.hot.iter().copied().filter(|&(id, _)| keeper.takes(id, share));
        let counts = TableEntry {
            accesses: state.accesses() + of(entry.accesses),
            births: state.births() + of(entry.births),
            deletes: state.deletes() + of(entry.deletes),
            evicted: state.evicted() + of(entry.evicted),
            hot: HotRows::most(state.hot_counts().into_iter().chain(owned).collect()),
            ..entry.clone()
        };
        Ok(Taking { table, keeper, share, counts })
    }
}

impl Keeper {
    fn takes(self, id: u64, share: Share) -> bool {
        match self {
            Self::Hash(category) => Owner::new(category, share.ranks).of(id) == share.rank,
            Self::Rank(rank) => rank == share.rank,
            Self::Every => true,
            Self::Copied => false,
        }
    }
}

impl Taking {
    /// Write the rows that this rank takes. Returns how many.
    fn take(&self, changed: &ChangedRows<'_>) -> Result<u64, StoreError> {
        let ChangedRows { ids, rows, row_floats, stamps, .. } = *changed;
        let mine: Vec<usize> = (0..ids.len()).filter(|&at| self.keeper.takes(ids[at], self.share)).collect();
        let own_ids: Vec<u64> = mine.iter().map(|&at| ids[at]).collect();
        let own_rows: Vec<f32> =
            mine.iter().flat_map(|&at| &rows[at * row_floats..][..row_floats]).copied().collect();
        let own_stamps: Vec<u64> = mine.iter().filter_map(|&at| stamps.get(at)).copied().collect();
        apply(&self.table, &ChangedRows { ids: &own_ids, rows: &own_rows, stamps: &own_stamps, ..*changed })?;
        Ok(own_ids.len() as u64)
    }
}
