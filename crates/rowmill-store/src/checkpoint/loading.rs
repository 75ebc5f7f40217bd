//! Loads the index from the files of a checkpoint into the shards.
//!
//! One thread reads and checks the files and sorts their entries by shard into a batch. Meanwhile the shards
//! load the previous batch in parallel. Entries of one shard keep their order: later ones replace earlier
//! ones.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rowmill_index::{Location, shard_and_hash_of};
use rowmill_io::Volume;
use rowmill_rows::Category;

use crate::error::StoreError;
use crate::files::{self, DeltaReader, Manifest, Move, SnapshotReader};
use crate::group::{Group, GroupTable};
use crate::shard::{IndexSize, Shard};
use crate::store::Store;
use crate::table::home;

/// Number of batches: one is filled while the other is loaded.
const BATCHES: usize = 2;
/// Maximum entries of a batch. Files list one shard after the other; this many entries cover several shards.
const ENTRIES_MAX: usize = 1 << 21;
/// Minimum entries of a batch, even if the indexes leave little memory.
const ENTRIES_MIN: usize = 1 << 12;
/// The batches use at most 1/16 of the memory, which holds no rows yet.
const MEMORY_SHARE: usize = 16;
/// Entries of one shard whose buckets are prefetched together.
const AHEAD: usize = 32;
/// Bit of the table of an entry that guards the entry after it: that one applies only if the index has the
/// row number of this one.
const GUARD: u32 = 1 << 31;
/// The row number of an entry that deletes its id.
const REMOVED: u32 = u32::MAX;

const _: () = assert!(Location::ROW_MAX < REMOVED);

#[derive(Clone, Copy)]
struct Entry {
    id: u64,
    table: u32,
    /// The row number, or `REMOVED`.
    row: u32,
}

/// Entries by group and shard, each list in the order of the files.
type Batch = Vec<Vec<Vec<Entry>>>;

/// Why reading ended early.
enum Ended {
    /// The receiver of batches has failed.
    Unwanted,
    /// The files are damaged or cannot be read.
    Failed(StoreError),
}

impl<E: Into<StoreError>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Store {
    /// Load the entries of the files of `manifest` into the shards.
    ///
    /// # Errors
    /// Damaged files, or an index larger than the budget.
    pub(crate) fn load_index(
        &self,
        manifest: &Manifest,
        by_category: &[Option<GroupTable>],
        size: IndexSize,
    ) -> Result<(), StoreError> {
        let groups = self.groups.read().clone();
        let ((full, arriving), (empty, returned)) = (channel(), channel());
        for _ in 0..BATCHES {
            let batch = groups.iter().map(|group| group.shards.iter().map(|_| Vec::new()).collect());
            empty.send(batch.collect()).expect("the receiver exists");
        }
        let left = self.budget.memory().saturating_sub(self.budget.needed(0)) as usize;
        let memory = left.min(self.budget.memory() as usize / MEMORY_SHARE) / BATCHES;
        let limit = (memory / size_of::<Entry>()).clamp(ENTRIES_MIN, ENTRIES_MAX);
        std::thread::scope(|scope| {
            // Moved here so that it is dropped when this thread fails: a reader that waits for a batch then
            // ends.
            let empty = empty;
            let read = move || {
                let mut sorting =
                    Sorting { by_category, batch: Batch::new(), count: 0, limit, full, returned };
                match sorting.read(&*self.volume, manifest) {
                    Ok(()) | Err(Ended::Unwanted) => Ok(()),
                    Err(Ended::Failed(error)) => Err(error),
                }
            };
            let name = "rowmill-open".to_owned();
            let spawned = std::thread::Builder::new().name(name.clone()).spawn_scoped(scope, read);
            let reader = spawned.map_err(|source| StoreError::Thread { name, source })?;
            for mut batch in arriving {
                self.take(&groups, &mut batch, size)?;
                // If this fails, the reader has already read everything.
                let _ = empty.send(batch);
            }
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Let every shard load its entries.
    fn take(&self, groups: &[Arc<Group>], batch: &mut Batch, size: IndexSize) -> Result<(), StoreError> {
        let mut shards: Vec<_> = groups
            .iter()
            .zip(batch)
            .flat_map(|(group, shards)| {
                (0..).zip(shards).map(move |(shard, entries)| (group, shard, entries))
            })
            .collect();
        // Report the first error by shard, independent of thread timing.
        let results = self.workers.map_all(shards.len(), |number| {
            let (group, shard, entries) = &shards[number];
            restore(group, *shard, entries, size)
        });
        for (_, _, entries) in &mut shards {
            entries.clear();
        }
        results.into_iter().collect()
    }
}

/// Sorts the entries of the files by shard.
struct Sorting<'a> {
    by_category: &'a [Option<GroupTable>],
    batch: Batch,
    /// Number of entries in the batch, and its limit.
    count: usize,
    limit: usize,
    full: Sender<Batch>,
    returned: Receiver<Batch>,
}

impl Sorting<'_> {
    fn read(&mut self, volume: &dyn Volume, manifest: &Manifest) -> Result<(), Ended> {
        self.batch = self.returned.recv().map_err(|_| Ended::Unwanted)?;
        if let Some(snapshot) = &manifest.snapshot {
            SnapshotReader::open(volume, snapshot)?.for_each_chunk(|category, ids, rows| {
                ids.iter().zip(rows).try_for_each(|(&id, &row)| self.push(category, id, row))
            })?;
        }
        for delta in &manifest.deltas {
            if files::lists_moves(&delta.name) {
                files::for_each_move(volume, delta, |moved| self.push_move(moved))?;
                continue;
            }
            DeltaReader::open(volume, delta)?
                .for_each(|key, row| self.push(key.category, key.id, row.unwrap_or(REMOVED)))?;
        }
        let last = std::mem::take(&mut self.batch);
        self.full.send(last).map_err(|_| Ended::Unwanted)
    }

    /// Push a move: it applies to the row of this key only if that is where the row was.
    fn push_move(&mut self, moved: Move) -> Result<(), Ended> {
        let Move { key, group, old, new } = moved;
        let by_category = self.by_category;
        let table = by_category.get(key.category.0 as usize).and_then(Option::as_ref);
        let Some((of, table)) = table else { return Ok(()) };
        if of.core.number != group || Group::check_ids(table, &[key.id]).is_err() {
            return Ok(());
        }
        let shard = home(table.spec.ids, key.id, of.shards.len());
        let guard = Entry { id: key.id, table: table.local | GUARD, row: old };
        self.put(of, shard, &[guard, Entry { table: table.local, row: new, ..guard }])
    }

    fn push(&mut self, category: Category, id: u64, row: u32) -> Result<(), Ended> {
        let by_category = self.by_category;
        let entry = by_category.get(category.0 as usize).and_then(Option::as_ref);
        let Some((group, table)) = entry else {
            return Err(Ended::Failed(StoreError::Corrupt {
                what: format!("the index has rows of the unknown category {}", category.0),
            }));
        };
        Group::check_ids(table, &[id]).map_err(|error| StoreError::Corrupt {
            what: format!("the index has an invalid row: {error}"),
        })?;
        let shard = home(table.spec.ids, id, group.shards.len());
        self.put(group, shard, &[Entry { id, table: table.local, row }])
    }

    /// Put entries into one batch.
    fn put(&mut self, group: &Group, shard: usize, entries: &[Entry]) -> Result<(), Ended> {
        if self.count + entries.len() > self.limit {
            let full = std::mem::take(&mut self.batch);
            self.full.send(full).map_err(|_| Ended::Unwanted)?;
            self.batch = self.returned.recv().map_err(|_| Ended::Unwanted)?;
            self.count = 0;
        }
        self.batch[group.core.number as usize][shard].extend_from_slice(entries);
        self.count += entries.len();
        Ok(())
    }
}

/// Load the entries of one shard.
fn restore(group: &Group, shard: usize, entries: &[Entry], size: IndexSize) -> Result<(), StoreError> {
    let mut state = group.shards[shard].state.write();
    let prefetch = |state: &Shard, entry: &Entry| {
        let (_, hash) = shard_and_hash_of(entry.id, group.shards.len());
        state.index(entry.table & !GUARD).prefetch(entry.id, hash);
    };
    for entry in entries.iter().take(AHEAD) {
        prefetch(&state, entry);
    }
    let mut applies = true;
    for (number, &Entry { id, table, row }) in entries.iter().enumerate() {
        if let Some(ahead) = entries.get(number + AHEAD) {
            prefetch(&state, ahead);
        }
        if table & GUARD != 0 {
            applies = state.restored(table & !GUARD, id) == Some(row);
        } else if std::mem::replace(&mut applies, true) {
            state.restore(&group.core, table, id, (row != REMOVED).then_some(row), size)?;
        }
    }
    Ok(())
}
