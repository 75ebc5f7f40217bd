//! Changes between an earlier checkpoint and the last one: rows written, ids deleted.
//!
//! Every checkpoint leaves a list of the index changes since the previous one (`files::delta`). The lists of
//! all checkpoints after `since` together name every row that was written or deleted, and its row number at
//! the last checkpoint. Rows that only moved are marked and left out. Only the last checkpoint's version of a
//! row is kept, so changes always lead up to the last checkpoint.
//!
//! Needs neither an index nor the budget of a store: the lists are read once per *part* of the ids, and a
//! part uses at most about 50 MB. A writer may continue meanwhile. The training process pins the checkpoint.
//! For any other process, the checkpoint may be replaced and its space reused while it is read, which gives
//! [`StoreError::Superseded`].

use std::collections::HashMap;
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
    self, DeltaReader, FileEntry, Manifest, Move, SnapshotReader, TableEntry, epoch_of, lists_moves,
    load_manifest,
};
use crate::options::Background;
use crate::staleness::Release;
use crate::store::log_device;
use crate::store::{Store, Table};
use crate::table::{Key, decode_row, set_stamp, write_row};
use crate::update::Target;

/// Records of lists in memory at a time: 16 bytes each, plus half of that for sorting.
const PART_RECORDS: u64 = 1 << 21;
/// Bytes of the smallest record: an entry of a snapshot.
const RECORD_BYTES_MIN: u64 = 12;
/// Maximum bytes of rows passed to a visitor at a time, for any batch size.
const BATCH_BYTES: usize = 16 << 20;
/// Memory for the checksums of segments.
const CHECKSUM_BYTES: usize = 8 << 20;
const DELETED: u32 = u32::MAX;
/// Kinds of records: the row was written or deleted, it only moved, or a guard: the record after it applies
/// only to a row at this row number.
const CHANGED: u32 = 0;
const MOVED: u32 = 1;
const GUARD: u32 = 2;
const KIND_BITS: u32 = 2;
const KIND_MASK: u32 = (1 << KIND_BITS) - 1;

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

/// A table as of the last checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedTable {
    /// Name.
    pub name: String,
    /// The spec that it was created with.
    pub spec: TableSpec,
    /// Number of updates applied (the step count of Adam).
    pub steps: u64,
    /// Number of rows, changed or not.
    pub rows: u64,
}

/// Some changes of one table. No id occurs twice in all changes.
#[derive(Clone, Copy, Debug)]
pub struct ChangedRows<'a> {
    /// Name of the table.
    pub table: &'a str,
    /// Ids of rows that are new or were written.
    pub ids: &'a [u64],
    /// For each row: weights, then optimizer state; `row_floats` floats.
    pub rows: &'a [f32],
    /// Weights per row.
    pub dim: usize,
    /// Weights and state floats per row.
    pub row_floats: usize,
    /// For each row, the stamp that eviction reads; empty if rows have no stamp.
    pub stamps: &'a [u64],
    /// Ids of deleted rows. Some may not have existed at `since` either.
    pub deleted: &'a [u64],
}

/// What a replay changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Number of rows written.
    pub written: u64,
    /// Number of rows deleted that existed.
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
    /// The changes from checkpoint `since` to the last durable one; 0 gives all rows. A store open for
    /// writing keeps that checkpoint until the changes are dropped.
    ///
    /// # Errors
    /// As [`Changes::open`], and [`StoreError::NoCheckpoint`].
    pub fn changes(self: &Arc<Self>, since: u64) -> Result<Changes, StoreError> {
        self.check_open()?;
        self.check_at_last("changes")?;
        if self.is_read_only() {
            return Changes::open(&self.volume, since);
        }
        let pinned = self.pin_checkpoint()?;
        let changes = Changes::of(&self.volume, pinned.manifest().clone(), since)?;
        Ok(Changes { pinned: Some(pinned), ..changes })
    }
}

impl Changes {
    /// The changes from checkpoint `since` to the last one of the store in a volume; 0 gives all rows.
    /// Another process may have the store open for writing.
    ///
    /// # Errors
    /// [`StoreError::ChangesGone`], [`StoreError::Missing`], [`StoreError::Corrupt`], or
    /// [`StoreError::Option`] if `since` is later than the last checkpoint.
    pub fn open(volume: &Arc<dyn Volume>, since: u64) -> Result<Self, StoreError> {
        Self::open_at(volume, since, None)
    }

    /// The changes up to checkpoint `at`, which may be a prepared one; `None`: up to the last.
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

    /// The checkpoint that the changes start from; 0 for all rows.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// The checkpoint that the changes lead up to.
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
    /// When the attachment is damaged.
    pub fn attachment(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let entry = self.manifest.attachments.iter().find(|entry| entry.name == name);
        Ok(entry.map(|entry| files::load_attachment(&*self.volume, entry)).transpose()?)
    }

    /// Visit all changes, at most `batch` rows of a table at a time. `visit` returns whether to continue.
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

    /// Bring `target`, a copy of the store at `since` (or empty), up to the last checkpoint: all rows with
    /// state and stamps, the steps of every table and the event time. Missing tables are created. Nothing is
    /// saved. Sketches are not copied, because they depend on the seed and the categories of their store.
    ///
    /// # Errors
    /// As [`Changes::for_each`], and as creating tables and writing rows. On an error, a part of the changes
    /// may be applied; replaying the same changes again is harmless.
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

    /// Files of index changes after `since`, oldest first.
    fn lists(&self) -> impl Iterator<Item = &FileEntry> {
        let Manifest { history, deltas, .. } = &self.manifest;
        // With the snapshot, only the changes after it are needed.
        let (history, after) = if self.since == 0 { (&[][..], 0) } else { (&history[..], self.since) };
        history
            .iter()
            .chain(deltas)
            .filter(move |file| epoch_of(&file.name).is_some_and(|epoch| epoch > after))
    }

    fn snapshot(&self) -> Option<&FileEntry> {
        self.manifest.snapshot.as_ref().filter(|_| self.since == 0)
    }

    /// The oldest checkpoint since which all lists exist. A copy of a checkpoint may lack its history.
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
                let device = log_device(&*self.volume, &entry.log_device, &entry.log, false)?;
                Ok(Log::open(device, config, &entry.log)?)
            })
            .collect()
    }

    /// The last record of every key in a part of the ids, ordered by category and row number.
    fn records(&self, part: usize, parts: usize) -> Result<Vec<Record>, StoreError> {
        // The two lowest bits of a category give the kind of the record. This fits, because there are at most
        // 2^16 tables.
        let mut found: Vec<Record> = Vec::new();
        let mut push = |key: RowKey, row: Option<u32>, kind: u32| {
            if shard_of(key.id, parts) == part {
                let category = key.category.0 << KIND_BITS | kind;
                found.push(Record { category, row: row.unwrap_or(DELETED), id: key.id });
            }
        };
        let tables = &self.manifest.tables;
        let groups: HashMap<u32, u32> = tables.iter().map(|table| (table.category.0, table.group)).collect();
        let known = |category: u32| {
            let known = groups.contains_key(&category);
            let unknown = || StoreError::Corrupt {
                what: format!("the index changes have rows of the unknown category {category}"),
            };
            known.then_some(()).ok_or_else(unknown)
        };
        if let Some(snapshot) = self.snapshot() {
            SnapshotReader::open(&*self.volume, snapshot)?.for_each_chunk(|category, ids, rows| {
                known(category.0)?;
                ids.iter()
                    .zip(rows)
                    .for_each(|(&id, &row)| push(RowKey { category, id }, Some(row), CHANGED));
                Ok::<(), StoreError>(())
            })?;
        }
        for list in self.lists() {
            if lists_moves(&list.name) {
                files::for_each_move(&*self.volume, list, |Move { key, group, old, new }| {
                    if groups.get(&key.category.0) == Some(&group) {
                        push(key, Some(old), GUARD);
                        push(key, Some(new), MOVED);
                    }
                    Ok::<(), StoreError>(())
                })?;
                continue;
            }
            DeltaReader::open(&*self.volume, list)?.for_each_record(|key, row, moved| {
                known(key.category.0)?;
                push(key, row, if moved { MOVED } else { CHANGED });
                Ok::<(), StoreError>(())
            })?;
        }
        let key = |record: &Record| (record.category >> KIND_BITS, record.id);
        found.sort_by_key(key);
        let same_keys = found.chunk_by(|one, next| key(one) == key(next));
        let mut last: Vec<Record> = same_keys.filter_map(last_of).collect();
        last.sort_unstable_by_key(|record| (record.category, record.row));
        Ok(last)
    }

    /// Visit the changes of one table, sorted by row number. Returns whether to continue.
    fn visit_table(
        &self,
        records: &[Record],
        batch: usize,
        rows: &mut Vec<f32>,
        visit: &mut impl FnMut(ChangedRows<'_>) -> bool,
    ) -> Result<bool, StoreError> {
        let category = records[0].category;
        let entry = self.manifest.tables.iter().find(|table| table.category.0 == category);
        let entry = entry.expect("every record belongs to a table");
        let layout = entry.spec.group().layout();
        let (dim, row_floats) = (layout.dim, layout.dim + layout.state_floats);
        let kept = records.partition_point(|record| record.row != DELETED);
        let (kept, deleted) = records.split_at(kept);
        // Rows that were created and deleted in between are included: whether they existed at `since` is not
        // known. Since 0, every row is new, so nothing is deleted.
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

    /// Map a result: a read error becomes [`StoreError::Superseded`] if the writer has replaced the
    /// checkpoint.
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

/// The last row number of a key, from its records in order; `None` if it only moved.
fn last_of(same: &[Record]) -> Option<Record> {
    let mut row = None;
    let (mut changed, mut applies) = (false, true);
    for record in same {
        match record.category & KIND_MASK {
            GUARD => applies = row == Some(record.row),
            kind if std::mem::replace(&mut applies, true) => {
                row = Some(record.row);
                changed |= kind == CHANGED;
            }
            _ => {}
        }
    }
    let category = same[0].category >> KIND_BITS;
    row.filter(|_| changed).map(|row| Record { category, row, id: same[0].id })
}

/// Apply changes to a table. Returns how many rows were deleted.
pub(crate) fn apply(table: &Table, changed: &ChangedRows<'_>) -> Result<usize, StoreError> {
    let ChangedRows { ids, deleted, .. } = *changed;
    if !ids.is_empty() {
        table.restore(changed)?;
    }
    if deleted.is_empty() { Ok(0) } else { table.delete(deleted) }
}

impl Table {
    /// Write whole rows of distinct ids: weights, state and stamps.
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
                    // SAFETY: as above; a row has `stride` bytes and is aligned to 4 bytes.
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
