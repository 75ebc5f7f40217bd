//! What changed between an earlier checkpoint and the last one: rows written, ids deleted.
//!
//! Every checkpoint leaves a list of the index changes since the one before (`files::delta`). The lists of
//! the checkpoints after `since`, together, name every row that was written or deleted meanwhile, and where
//! the last checkpoint has it; rows that only moved are marked and left out. Rows themselves are kept in
//! their version of the last checkpoint alone, so changes always lead up to that one.
//!
//! Needs no index and not the budget of a store: the lists are read once per *part* of the ids, and a part
//! takes at most some 50 MB. A writer may go on meanwhile: the process that trains pins the checkpoint; to any
//! other it may happen that the checkpoint was replaced and what is being read reused, which is
//! [`StoreError::Superseded`].

use std::collections::{HashMap, HashSet};
use std::slice::from_raw_parts_mut;
use std::sync::Arc;

use rowmill_index::shard_of;
use rowmill_io::Volume;
use rowmill_log::{Geometry, Log, LogConfig};
use rowmill_rows::{RowKey, RowLayout, TableSpec};

use super::pin::PinnedCheckpoint;
use crate::checkpoint::settle;
use crate::error::StoreError;
use crate::files::{
    self, DeltaReader, FileEntry, Manifest, SnapshotReader, TableEntry, epoch_of, load_manifest,
};
use crate::options::Background;
use crate::staleness::Release;
use crate::store::{Store, Table};
use crate::table::{Key, decode_row, set_stamp, write_row};
use crate::update::Target;

/// Records of lists taken into memory at a time: 16 bytes each, and half as much for sorting them.
const PART_RECORDS: u64 = 1 << 21;
/// Bytes of the smallest record: an entry of a snapshot.
const RECORD_BYTES_MIN: u64 = 12;
/// Bytes of rows handed out at a time, whatever batch is asked for.
const BATCH_BYTES: usize = 16 << 20;
/// Memory for the checksums of segments.
const CHECKSUM_BYTES: usize = 8 << 20;
const DELETED: u32 = u32::MAX;

/// The changes since a checkpoint.
#[derive(Debug)]
pub struct Changes {
    pub(crate) volume: Arc<dyn Volume>,
    pub(crate) manifest: Manifest,
    since: u64,
    /// The logs of the groups.
    logs: Vec<Log>,
    pinned: Option<PinnedCheckpoint>,
}

/// A table as the last checkpoint has it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedTable {
    /// Name.
    pub name: String,
    /// What it was created with.
    pub spec: TableSpec,
    /// Updates applied, the step count of Adam.
    pub steps: u64,
    /// Rows in it, changed or not.
    pub rows: u64,
}

/// Some changes of one table. No id comes twice in all changes.
#[derive(Clone, Copy, Debug)]
pub struct ChangedRows<'a> {
    /// Name of the table.
    pub table: &'a str,
    /// Rows that are new or were written.
    pub ids: &'a [u64],
    /// Weights and behind them the optimizer state of each, `row_floats` floats.
    pub rows: &'a [f32],
    /// Weights per row.
    pub dim: usize,
    /// Weights and state per row.
    pub row_floats: usize,
    /// What the table's eviction goes by, of each row; empty where rows have no stamp.
    pub stamps: &'a [u64],
    /// Rows that are gone; some may not have been there at `since` either.
    pub deleted: &'a [u64],
}

/// What a replay changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Rows written.
    pub written: u64,
    /// Rows deleted that had been there.
    pub deleted: u64,
}

/// The last record of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    category: u32,
    /// Row number, or `DELETED`.
    row: u32,
    id: u64,
}

impl Store {
    /// The changes from checkpoint `since` to the last durable one; 0 asks for all rows. A store open for writing
    /// keeps that checkpoint as it is until they are dropped.
    ///
    /// # Errors
    /// As [`Changes::open`], and [`StoreError::NoCheckpoint`].
    pub fn changes(self: &Arc<Self>, since: u64) -> Result<Changes, StoreError> {
        self.check_open()?;
        if self.is_read_only() {
            return Changes::open(&self.volume, since);
        }
        let pinned = self.pin_checkpoint()?;
        let changes = Changes::of(&self.volume, pinned.manifest().clone(), since)?;
        Ok(Changes { pinned: Some(pinned), ..changes })
    }
}

impl Changes {
    /// The changes from checkpoint `since` to the last one of the store in a volume, which may be open for
    /// writing elsewhere; 0 asks for all rows.
    ///
    /// # Errors
    /// [`StoreError::ChangesGone`], [`StoreError::Missing`], [`StoreError::Corrupt`], or a `since` that lies
    /// in the future.
    pub fn open(volume: &Arc<dyn Volume>, since: u64) -> Result<Self, StoreError> {
        Self::open_at(volume, since, None)
    }

    /// The changes up to checkpoint `at` instead of the last one, where another one was prepared; none: the last.
    ///
    /// # Errors
    /// As [`Changes::open`], and [`StoreError::NotAt`].
    pub fn open_at(volume: &Arc<dyn Volume>, since: u64, at: Option<u64>) -> Result<Self, StoreError> {
        let Some(manifest) = settle(&**volume, at, true)? else {
            return Err(StoreError::Missing { location: volume.location() });
        };
        Self::of(volume, manifest, since)
    }

    fn of(volume: &Arc<dyn Volume>, manifest: Manifest, since: u64) -> Result<Self, StoreError> {
        if since > manifest.epoch {
            return Err(StoreError::Option {
                option: "since",
                expected: format!("at most {}, the number of the last checkpoint", manifest.epoch),
                got: since.to_string(),
            });
        }
        let mut changes =
            Self { volume: Arc::clone(volume), manifest, since, logs: Vec::new(), pinned: None };
        let oldest = changes.oldest()?;
        if since > 0 && since < oldest {
            return Err(StoreError::ChangesGone { since, oldest });
        }
        let logs = changes.open_logs();
        changes.logs = changes.settle(logs)?;
        Ok(changes)
    }

    /// The checkpoint the changes begin at; 0 for all rows.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// The checkpoint they lead up to.
    pub fn until(&self) -> u64 {
        self.manifest.epoch
    }

    /// All tables of that checkpoint, in the order of their creation.
    pub fn tables(&self) -> Vec<ChangedTable> {
        let table = |entry: &TableEntry| ChangedTable {
            name: entry.name.clone(),
            spec: entry.spec,
            steps: entry.steps,
            rows: entry.rows,
        };
        self.manifest.tables.iter().map(table).collect()
    }

    /// An attachment of that checkpoint.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn attachment(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let entry = self.manifest.attachments.iter().find(|entry| entry.name == name);
        Ok(entry.map(|entry| files::load_attachment(&*self.volume, entry)).transpose()?)
    }

    /// Visit all changes, at most `batch` of a table at a time; `visit` returns whether to go on.
    ///
    /// # Errors
    /// [`StoreError::Superseded`], damaged files, or rows that cannot be read.
    pub fn for_each(
        &self,
        batch: usize,
        mut visit: impl FnMut(ChangedRows<'_>) -> bool,
    ) -> Result<(), StoreError> {
        if let Some(pinned) = &self.pinned {
            pinned.check_process()?;
        }
        let lists = self.lists().map(|file| file.len).sum::<u64>();
        let snapshot = self.snapshot().map_or(0, |file| file.len);
        let parts = ((lists + snapshot) / RECORD_BYTES_MIN).div_ceil(PART_RECORDS).max(1);
        let parts = parts.next_power_of_two() as usize;
        let mut rows = Vec::new();
        for part in 0..parts {
            let records = self.settle(self.records(part, parts))?;
            for records in records.chunk_by(|one, next| one.category == next.category) {
                if !self.visit_table(records, batch.max(1), &mut rows, &mut visit)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Bring `target`, a copy of the store at `since` (or empty), to the last checkpoint: all rows with their
    /// state and stamps, the steps of every table and the event time. Tables it lacks are made. It is not saved.
    /// What an admission has counted stays behind: its sketch goes by the seed and the category of its store.
    ///
    /// # Errors
    /// As [`Changes::for_each`], and as creating tables and writing rows; part of the changes may be applied
    /// then, and a second replay of the same is harmless.
    pub fn replay(&self, target: &Arc<Store>) -> Result<Replayed, StoreError> {
        let mut tables = HashMap::new();
        if let Some(time) = self.manifest.event_time {
            target.events.advance(time);
        }
        for table in self.tables() {
            let made = target.table(&table.name, &table.spec)?;
            made.state().restore_steps(table.steps);
            tables.insert(table.name, made);
        }
        let mut replayed = Replayed::default();
        let mut failure = None;
        self.for_each(usize::MAX, |changed| {
            match apply(&tables[changed.table], &changed) {
                Ok(deleted) => {
                    replayed.written += changed.ids.len() as u64;
                    replayed.deleted += deleted as u64;
                }
                Err(error) => failure = Some(error),
            }
            failure.is_none()
        })?;
        failure.map_or(Ok(replayed), Err)
    }

    /// Index changes after `since`, oldest first.
    fn lists(&self) -> impl Iterator<Item = &FileEntry> {
        let Manifest { history, deltas, .. } = &self.manifest;
        // With the snapshot come the changes since it.
        let (history, after) = if self.since == 0 { (&[][..], 0) } else { (&history[..], self.since) };
        history
            .iter()
            .chain(deltas)
            .filter(move |file| epoch_of(&file.name).is_some_and(|epoch| epoch > after))
    }

    fn snapshot(&self) -> Option<&FileEntry> {
        self.manifest.snapshot.as_ref().filter(|_| self.since == 0)
    }

    /// The oldest checkpoint whose successors' lists are all there. A copy of a checkpoint may come without
    /// its history.
    fn oldest(&self) -> Result<u64, StoreError> {
        let Manifest { history, deltas, epoch, .. } = &self.manifest;
        let names = self.volume.list()?;
        let mut oldest = *epoch;
        for file in history.iter().chain(deltas).rev() {
            if epoch_of(&file.name) != Some(oldest) || names.binary_search(&file.name).is_err() {
                break;
            }
            oldest -= 1;
        }
        Ok(oldest)
    }

    fn open_logs(&self) -> Result<Vec<Log>, StoreError> {
        let incarnation = Background::Threads.incarnation();
        let groups = (0..).zip(&self.manifest.groups);
        groups
            .map(|(group, entry)| {
                let geometry = Geometry::new(entry.stride as usize, entry.segment_bytes as usize);
                let reading = LogConfig::for_reading(group, geometry, CHECKSUM_BYTES);
                let config = LogConfig { incarnation, ..reading };
                Ok(Log::open(self.volume.device(&entry.log_device, false)?, config, &entry.log)?)
            })
            .collect()
    }

    /// The last record of every key of a part of the ids, by category and row number.
    fn records(&self, part: usize, parts: usize) -> Result<Vec<Record>, StoreError> {
        // The last bit of a category says whether the row was only moved; there are 2^16 tables.
        let mut found: Vec<Record> = Vec::new();
        let mut push = |key: RowKey, row: Option<u32>, moved: bool| {
            if shard_of(key.id, parts) == part {
                let category = key.category.0 << 1 | u32::from(moved);
                found.push(Record { category, row: row.unwrap_or(DELETED), id: key.id });
            }
        };
        let categories: HashSet<u32> = self.manifest.tables.iter().map(|table| table.category.0).collect();
        let known = |category: u32| {
            let known = categories.contains(&category);
            let unknown = || StoreError::Corrupt {
                what: format!("the index changes have rows of unknown category {category}"),
            };
            known.then_some(()).ok_or_else(unknown)
        };
        if let Some(snapshot) = self.snapshot() {
            SnapshotReader::open(&*self.volume, snapshot)?.for_each_chunk(|category, ids, rows| {
                known(category.0)?;
                ids.iter().zip(rows).for_each(|(&id, &row)| push(RowKey { category, id }, Some(row), false));
                Ok::<(), StoreError>(())
            })?;
        }
        for list in self.lists() {
            DeltaReader::open(&*self.volume, list)?.for_each_record(|key, row, moved| {
                known(key.category.0)?;
                push(key, row, moved);
                Ok::<(), StoreError>(())
            })?;
        }
        found.sort_by_key(|record| (record.category >> 1, record.id));
        let mut last: Vec<Record> = found
            .chunk_by(|one, next| (one.category >> 1, one.id) == (next.category >> 1, next.id))
            .filter(|same| same.iter().any(|record| record.category & 1 == 0))
            .map(|same| Record { category: same[0].category >> 1, ..same[same.len() - 1] })
            .collect();
        last.sort_unstable_by_key(|record| (record.category, record.row));
        Ok(last)
    }

    /// Hand out the changes of one table, sorted by row number; whether to go on.
    fn visit_table(
        &self,
        records: &[Record],
        batch: usize,
        rows: &mut Vec<f32>,
        visit: &mut impl FnMut(ChangedRows<'_>) -> bool,
    ) -> Result<bool, StoreError> {
        let category = records[0].category;
        let entry = self.manifest.tables.iter().find(|table| table.category.0 == category);
        let entry = entry.expect("records have a table each");
        let layout = entry.spec.group().layout();
        let (dim, row_floats) = (layout.dim, layout.dim + layout.state_floats);
        let kept = records.partition_point(|record| record.row != DELETED);
        let (kept, deleted) = records.split_at(kept);
        // What was made and deleted in between need not be told, but is: nobody kept what was there before.
        // Every row at 0 is new, so nothing is deleted.
        let deleted = if self.since == 0 { &[] } else { deleted };
        let table = entry.name.as_str();
        let mut stamps = Vec::new();
        for records in kept.chunks(batch.min(BATCH_BYTES / layout.stride).max(1)) {
            rows.clear();
            rows.resize(records.len() * row_floats, 0.0);
            stamps.clear();
            stamps.resize(layout.stamp_offset().map_or(0, |_| records.len()), 0);
            self.settle(self.read(entry, records, &layout, rows, &mut stamps))?;
            let ids: Vec<u64> = records.iter().map(|record| record.id).collect();
            let (ids, stamps) = (ids.as_slice(), stamps.as_slice());
            if !visit(ChangedRows { table, ids, rows, dim, row_floats, stamps, deleted: &[] }) {
                return Ok(false);
            }
        }
        for records in deleted.chunks(batch) {
            let ids: Vec<u64> = records.iter().map(|record| record.id).collect();
            let deleted = ids.as_slice();
            if !visit(ChangedRows { table, ids: &[], rows: &[], dim, row_floats, stamps: &[], deleted }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read(
        &self,
        entry: &TableEntry,
        records: &[Record],
        layout: &RowLayout,
        rows: &mut [f32],
        stamps: &mut [u64],
    ) -> Result<(), StoreError> {
        let row_floats = layout.dim + layout.state_floats;
        let log = &self.logs[entry.group as usize];
        let key = |record: &Record| RowKey { category: entry.category, id: record.id };
        let wanted: Vec<(u32, RowKey)> = records.iter().map(|record| (record.row, key(record))).collect();
        let mut failure = None;
        log.reading().read(&wanted, &mut |number, result| match result {
            Ok(bytes) => {
                decode_row(layout, bytes, &mut rows[number * row_floats..][..row_floats]);
                if let Some(offset) = layout.stamp_offset() {
                    let stamp = bytes[offset..].first_chunk().expect("a stamp lies inside its row");
                    stamps[number] = u64::from_le_bytes(*stamp);
                }
            }
            Err(error) => {
                failure.get_or_insert(error);
            }
        });
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Pass a result on; what cannot be read because the writer has gone on is said so.
    fn settle<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.map_err(|error| {
            let unreadable = matches!(error, StoreError::Corrupt { .. } | StoreError::Device(_));
            let moved_on = || {
                let now = load_manifest(&*self.volume).ok().flatten();
                now.is_some_and(|manifest| manifest.epoch > self.manifest.epoch)
            };
            if unreadable && moved_on() { StoreError::Superseded } else { error }
        })
    }
}

/// Apply changes to a table; how many rows were deleted.
pub(crate) fn apply(table: &Table, changed: &ChangedRows<'_>) -> Result<usize, StoreError> {
    let ChangedRows { ids, deleted, .. } = *changed;
    if !ids.is_empty() {
        table.restore(changed)?;
    }
    if deleted.is_empty() { Ok(0) } else { table.delete(deleted) }
}

impl Table {
    /// Write whole rows of some distinct ids: weights, state and stamps.
    fn restore(&self, changed: &ChangedRows<'_>) -> Result<(), StoreError> {
        let ChangedRows { ids, rows: values, row_floats, stamps, .. } = *changed;
        let store = self.store();
        store.check_writable("a replay")?;
        let target = Target::Ids { table: self.state(), ids };
        let _change = store.changes.read();
        let layout = &self.group().core.layout;
        store.settle(self.group().update(&target, &Release::NOTHING, &|keys: &[Key], rows: &[*mut f32]| {
            for (key, &row) in keys.iter().zip(rows) {
                let position = key.position as usize;
                let values = &values[position * row_floats..][..row_floats];
                // SAFETY: `row` is a resident row of this group under its shard's write lock.
                unsafe { write_row(layout, values, row) };
                if let Some(&stamp) = stamps.get(position) {
                    // SAFETY: as above; a row is `stride` bytes, on a multiple of 4.
                    set_stamp(layout, unsafe { from_raw_parts_mut(row, layout.stride / 4) }, stamp);
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use rowmill_io::MemoryVolume;
    use rowmill_rows::{Dtype, IdRange, Initializer, OptimizerSpec, StalenessBound};

    use super::*;
    use crate::StoreOptions;

    #[test]
    fn parts_together_are_everything_once() {
        let options = StoreOptions { memory: 16 << 20, ..StoreOptions::default() };
        let store = Store::open_volume(Arc::new(MemoryVolume::new()), options).unwrap();
        let spec = TableSpec {
            dim: 4,
            dtype: Dtype::F32,
            optimizer: OptimizerSpec::Sgd { lr: 0.5 },
            initializer: Initializer::Zeros,
            staleness: StalenessBound::Infinite,
            ids: IdRange::Sparse,
            eviction: None,
            admission: None,
        };
        let table = store.table("a", &spec).unwrap();
        for round in 0..3 {
            let ids: Vec<u64> = (0..3000).map(|id| id + round * 1000).collect();
            table.put(&ids, &vec![1.0; ids.len() * 4], None).unwrap();
            table.delete(&ids[..10]).unwrap();
            store.checkpoint(&[]).unwrap();
        }
        let changes = store.changes(1).unwrap();
        let sorted = |mut records: Vec<Record>| {
            records.sort_unstable_by_key(|record| record.id);
            records
        };
        let whole = sorted(changes.records(0, 1).unwrap());
        let parts: Vec<Vec<Record>> = (0..8).map(|part| changes.records(part, 8).unwrap()).collect();
        assert!(parts.iter().all(|part| part.len() > 100 && part.len() < 1000));
        assert_eq!(sorted(parts.concat()), whole);
        assert_eq!(whole.len(), 4000);
    }
}
