//! The index of a checkpoint, from its undamaged files.

use std::collections::HashMap;

use rowmill_io::Volume;
use rowmill_rows::RowKey;

use super::FsckReport;
use super::segments::Segments;
use crate::error::StoreError;
use crate::files::{DeltaReader, FileEntry, Manifest, Move, SnapshotReader, for_each_move, lists_moves};

pub(super) struct Index {
    /// The row number of every row.
    pub(super) entries: HashMap<RowKey, u32>,
    /// Rows that may have existed.
    pub(super) unproven: Vec<RowKey>,
    /// Rows that later files of the index list as deleted.
    deleted: Vec<RowKey>,
    /// Whether no file of the index is damaged.
    pub(super) complete: bool,
}

impl Index {
    /// Read snapshot and deltas. Entries of a damaged file and of all files before it are not used: an
    /// unreadable change may have replaced them.
    pub(super) fn load(volume: &dyn Volume, manifest: &Manifest, report: &mut FsckReport) -> Self {
        let mut entries: HashMap<RowKey, Option<u32>> = HashMap::new();
        let mut complete = true;
        let groups = manifest.tables.iter().map(|table| (table.category.0, table.group)).collect();
        let mut note = |file: &FileEntry, read: Result<(), StoreError>, entries: &mut HashMap<_, _>| {
            report.files += 1;
            if let Err(error) = read {
                report.problems.push(format!("{}: {error}", file.name));
                entries.clear();
                complete = false;
            }
        };
        if let Some(file) = &manifest.snapshot {
            let read = read_snapshot(volume, file, &mut entries);
            note(file, read, &mut entries);
        }
        for file in &manifest.deltas {
            let read = read_delta(volume, file, &groups, &mut entries);
            note(file, read, &mut entries);
        }
        let mut index = Self { entries: HashMap::new(), unproven: Vec::new(), deleted: Vec::new(), complete };
        for (key, row) in entries {
            match row {
                Some(row) => drop(index.entries.insert(key, row)),
                None => index.deleted.push(key),
            }
        }
        index
    }

    /// Find rows in the logs that the files of the index do not list.
    pub(super) fn complete_from(
        &mut self,
        manifest: &Manifest,
        segments: &Segments,
        report: &mut FsckReport,
    ) {
        let deleted: std::collections::HashSet<RowKey> = self.deleted.drain(..).collect();
        let found = segments.versions();
        for table in &manifest.tables {
            let proven = self.entries.keys().filter(|key| key.category == table.category).count() as u64;
            let others: Vec<(&RowKey, &Vec<u32>)> = found
                .iter()
                .filter(|(key, _)| {
                    key.category == table.category
                        && !self.entries.contains_key(key)
                        && !deleted.contains(key)
                })
                .collect();
            let whole = segments.is_whole(table.group);
            let none_deleted = proven + others.len() as u64 == table.rows;
            let mut added = Vec::new();
            for (key, versions) in others {
                match versions[..] {
                    [row] if whole && none_deleted => added.push((*key, row)),
                    _ => self.unproven.push(*key),
                }
            }
            if !added.is_empty() {
                report.problems.push(format!(
                    "{} rows of table {:?} are missing in the index but intact in the log",
                    added.len(),
                    table.name
                ));
            }
            self.entries.extend(added);
        }
    }
}

fn read_snapshot(
    volume: &dyn Volume,
    file: &FileEntry,
    entries: &mut HashMap<RowKey, Option<u32>>,
) -> Result<(), StoreError> {
    SnapshotReader::open(volume, file)?.for_each_chunk(|category, ids, rows| {
        entries.extend(ids.iter().zip(rows).map(|(&id, &row)| (RowKey { category, id }, Some(row))));
        Ok(())
    })
}

fn read_delta(
    volume: &dyn Volume,
    file: &FileEntry,
    groups: &HashMap<u32, u32>,
    entries: &mut HashMap<RowKey, Option<u32>>,
) -> Result<(), StoreError> {
    if lists_moves(&file.name) {
        return for_each_move(volume, file, |Move { key, group, old, new }| {
            if let Some(row) = entries.get_mut(&key)
                && *row == Some(old)
                && groups.get(&key.category.0) == Some(&group)
            {
                *row = Some(new);
            }
            Ok(())
        });
    }
    DeltaReader::open(volume, file)?.for_each(|key, row| {
        entries.insert(key, row);
        Ok(())
    })
}
