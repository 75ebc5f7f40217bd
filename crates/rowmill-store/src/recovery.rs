//! Opening a store at its last checkpoint.

use crate::StoreError;
use crate::files::{DeltaReader, Manifest, SnapshotReader};
use crate::group::Group;
use crate::keys::home;
use crate::store::{Store, TableEntry};

impl Store {
    /// Bring groups, tables and index to the state of `manifest`. Rows stay on the device.
    ///
    /// # Errors
    /// Damaged files, or an index larger than the budget.
    pub(crate) fn recover(&self, manifest: &Manifest) -> Result<(), StoreError> {
        for entry in &manifest.groups {
            self.open_group(&entry.spec, entry.segment_bytes as usize, &entry.log)?;
        }
        let mut by_category: Vec<Option<TableEntry>> = Vec::new();
        {
            let mut tables = self.tables.write();
            for entry in &manifest.tables {
                let group = std::sync::Arc::clone(&self.groups.read()[entry.group as usize]);
                let table = self.enter_table(
                    &mut tables,
                    &entry.name,
                    entry.category,
                    &group,
                    &entry.spec,
                    entry.steps,
                );
                table.1.restore_counts(entry.accesses, entry.births, entry.hot.clone());
                let category = entry.category.0 as usize;
                if by_category.len() <= category {
                    by_category.resize_with(category + 1, || None);
                }
                by_category[category] = Some(table);
            }
        }
        let restore = |category: u32, id: u64, row: Option<u32>| {
            let entry = by_category.get(category as usize).and_then(Option::as_ref);
            let Some((group, table)) = entry else {
                return Err(StoreError::Corrupt {
                    what: format!("the index has rows of unknown category {category}"),
                });
            };
            Group::check_ids(table, &[id]).map_err(|error| StoreError::Corrupt {
                what: format!("the index has a row that cannot be: {error}"),
            })?;
            let shard = home(table.spec.ids, id, group.shards.len());
            group.shards[shard].state.write().restore(&group.core, table.local, id, row)
        };
        if let Some(snapshot) = &manifest.snapshot {
            SnapshotReader::open(&*self.volume, snapshot)?.for_each_chunk(|category, ids, rows| {
                ids.iter().zip(rows).try_for_each(|(&id, &row)| restore(category.0, id, Some(row)))
            })?;
        }
        for delta in &manifest.deltas {
            DeltaReader::open(&*self.volume, delta)?
                .for_each(|key, row| restore(key.category.0, key.id, row))?;
        }
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

/// Tell the log which of its rows the index names.
fn retain_rows(group: &Group) -> Result<(), StoreError> {
    let log = &group.core.log;
    for cell in &group.shards {
        let shard = cell.state.read();
        for table in group.tables.read().iter() {
            let mut unknown = None;
            shard.on_device(table.local, |id, row| {
                if log.has_row(row) {
                    log.retain(row);
                } else {
                    unknown = Some((id, row));
                }
            });
            if let Some((id, row)) = unknown {
                let what = format!(
                    "the index has {} at row {row}, which the log does not",
                    group.key(table.local, id)
                );
                return Err(StoreError::Corrupt { what });
            }
        }
    }
    log.loaded();
    Ok(())
}
