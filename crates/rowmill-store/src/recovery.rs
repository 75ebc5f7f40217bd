//! Opening a store at its last checkpoint.

use std::sync::Arc;

use rayon::prelude::*;
use rowmill_rows::Category;

use crate::StoreError;
use crate::files::{self, DeltaReader, Manifest, SnapshotReader};
use crate::group::{Group, ShardCell};
use crate::index::shard_and_hash_of;
use crate::keys::home;
use crate::store::{Store, TableEntry};
use crate::table_state::TableState;

/// Entries that are collected: files list one shard after the other, and this many are of several.
const ENTRIES_MAX: usize = 1 << 22;
/// And they take at most one part in this many of the memory, which holds no rows yet.
const MEMORY_SHARE: usize = 16;
/// Entries of one shard whose buckets are asked for at once.
const AHEAD: usize = 16;

impl Store {
    /// Bring groups, tables and index to the state of `manifest`. Rows stay on the device.
    ///
    /// # Errors
    /// Damaged files, or an index larger than the budget.
    pub(crate) fn recover(&self, manifest: &Manifest) -> Result<(), StoreError> {
        if let Some(time) = manifest.event_time {
            self.events.advance(time);
        }
        for entry in &manifest.groups {
            self.open_group(&entry.spec, entry.segment_bytes as usize, &entry.log)?;
        }
        let mut by_category: Vec<Option<TableEntry>> = Vec::new();
        {
            let mut tables = self.tables.write();
            for entry in &manifest.tables {
                let group = Arc::clone(&self.groups.read()[entry.group as usize]);
                let table = self.enter_table(
                    &mut tables,
                    &entry.name,
                    entry.category,
                    &group,
                    &entry.spec,
                    entry.steps,
                );
                table.1.restore_counts(entry);
                self.restore_sketch(manifest, &table.1)?;
                let category = entry.category.0 as usize;
                if by_category.len() <= category {
                    by_category.resize_with(category + 1, || None);
                }
                by_category[category] = Some(table);
            }
        }
        let mut entries = Entries::new(self, &by_category);
        if let Some(snapshot) = &manifest.snapshot {
            SnapshotReader::open(&*self.volume, snapshot)?.for_each_chunk(|category, ids, rows| {
                ids.iter().zip(rows).try_for_each(|(&id, &row)| entries.push(category, id, Some(row)))
            })?;
        }
        for delta in &manifest.deltas {
            DeltaReader::open(&*self.volume, delta)?
                .for_each(|key, row| entries.push(key.category, key.id, row))?;
        }
        entries.flush()?;
        for group in self.groups.read().iter() {
            retain_rows(group)?;
        }
        for entry in &manifest.tables {
            let (group, table) = by_category[entry.category.0 as usize].as_ref().expect("entered above");
            let found = group.len(table.local) as u64;
            if found != entry.rows {
                let what = format!(
                    "table {:?} had {} rows at the checkpoint, its index has {found}",
                    entry.name, entry.rows
                );
                return Err(StoreError::Corrupt { what });
            }
        }
        Ok(())
    }
}

impl Store {
    /// Continue the counts of ids that have no row yet.
    fn restore_sketch(&self, manifest: &Manifest, table: &TableState) -> Result<(), StoreError> {
        let Some(sketch) = &table.sketch else { return Ok(()) };
        let name = table.category.0.to_string();
        let Some(entry) = manifest.sketches.iter().find(|entry| entry.name == name) else {
            // A repair could not keep it: counting begins anew.
            return Ok(());
        };
        if sketch.lock().restore(files::load_attachment(&*self.volume, entry)?) {
            return Ok(());
        }
        let what = format!("{} does not have the size of the sketch of table {:?}", entry.file, table.name);
        Err(StoreError::Corrupt { what })
    }
}

/// Entries of the index on their way from files to shards. Many are collected, so that shards take theirs
/// side by side, and each has the memory of the next ones fetched ahead.
struct Entries<'a> {
    store: &'a Store,
    by_category: &'a [Option<TableEntry>],
    /// Of every shard of every group, in the order of the files.
    waiting: Vec<Vec<Vec<Entry>>>,
    count: usize,
    limit: usize,
}

struct Entry {
    id: u64,
    table: u32,
    /// The row number; none removes the id.
    row: Option<u32>,
}

impl<'a> Entries<'a> {
    fn new(store: &'a Store, by_category: &'a [Option<TableEntry>]) -> Self {
        let groups = store.groups.read();
        let waiting = groups.iter().map(|group| group.shards.iter().map(|_| Vec::new()).collect()).collect();
        let memory = store.budget.memory() as usize / MEMORY_SHARE;
        let limit = (memory / size_of::<Entry>()).min(ENTRIES_MAX);
        Self { store, by_category, waiting, count: 0, limit }
    }

    fn push(&mut self, category: Category, id: u64, row: Option<u32>) -> Result<(), StoreError> {
        let entry = self.by_category.get(category.0 as usize).and_then(Option::as_ref);
        let Some((group, table)) = entry else {
            return Err(StoreError::Corrupt {
                what: format!("the index has rows of unknown category {}", category.0),
            });
        };
        Group::check_ids(table, &[id]).map_err(|error| StoreError::Corrupt {
            what: format!("the index has a row that cannot be: {error}"),
        })?;
        let shard = home(table.spec.ids, id, group.shards.len());
        self.waiting[group.core.number as usize][shard].push(Entry { id, table: table.local, row });
        self.count += 1;
        if self.count < self.limit { Ok(()) } else { self.flush() }
    }

    /// Let every shard take what waits for it.
    fn flush(&mut self) -> Result<(), StoreError> {
        self.count = 0;
        let groups = self.store.groups.read().clone();
        let mut shards: Vec<_> = groups
            .iter()
            .zip(&mut self.waiting)
            .flat_map(|(group, shards)| {
                (0..).zip(shards).map(move |(shard, entries)| (group, shard, entries))
            })
            .collect();
        let restore = |(group, shard, entries): &mut (&Arc<Group>, usize, &mut Vec<Entry>)| {
            let result = restore(group, *shard, entries);
            entries.clear();
            result
        };
        // The first error by shard, whichever thread is faster.
        let results: Vec<_> = self.store.workers.run(|| shards.par_iter_mut().map(restore).collect());
        results.into_iter().collect()
    }
}

/// Enter what a shard is to hold.
fn restore(group: &Group, shard: usize, entries: &[Entry]) -> Result<(), StoreError> {
    let mut state = group.shards[shard].state.write();
    for entries in entries.chunks(AHEAD) {
        for entry in entries {
            let (_, hash) = shard_and_hash_of(entry.id, group.shards.len());
            state.index(entry.table).prefetch(entry.id, hash);
        }
        for entry in entries {
            state.restore(&group.core, entry.table, entry.id, entry.row)?;
        }
    }
    Ok(())
}

/// Tell the log which of its rows the index names.
fn retain_rows(group: &Group) -> Result<(), StoreError> {
    let retain = |cell: &ShardCell| retain_rows_of(group, cell);
    let results: Vec<_> = group.workers.run(|| group.shards.par_iter().map(retain).collect());
    group.core.log.loaded();
    results.into_iter().collect()
}

fn retain_rows_of(group: &Group, cell: &ShardCell) -> Result<(), StoreError> {
    let mut retaining = group.core.log.retaining();
    let shard = cell.state.read();
    for table in group.tables.read().iter() {
        let mut unknown = None;
        shard.on_device(table.local, |id, row| {
            if !retaining.row(row) {
                unknown = Some((id, row));
            }
        });
        if let Some((id, row)) = unknown {
            let key = group.key(table.local, id);
            let what = format!("the index has {key} at row {row}, which the log does not");
            return Err(StoreError::Corrupt { what });
        }
    }
    retaining.finish();
    Ok(())
}
