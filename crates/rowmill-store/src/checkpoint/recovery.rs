//! Restores groups, tables and indexes from a checkpoint when a store is opened.

use std::sync::Arc;

use crate::error::StoreError;
use crate::files::{self, Manifest};
use crate::group::{Group, GroupTable, ShardCell};
use crate::memory::Purpose;
use crate::store::{KeptVersion, NewIndex, Store};
use crate::table::TableState;

impl Store {
    /// Restore groups, tables and index from `manifest`. Rows stay on the device.
    ///
    /// # Errors
    /// Damaged files, or an index larger than the budget.
    pub(crate) fn recover(&self, manifest: &Manifest) -> Result<(), StoreError> {
        if let Some(time) = manifest.event_time {
            self.events.advance(time);
        }
        for entry in &manifest.groups {
            self.open_group(&entry.spec, entry.segment_bytes as usize, &entry.log, Purpose::Open)?;
        }
        let size = {
            let groups = self.groups.read().clone();
            let indexes: Vec<NewIndex<'_>> = manifest
                .tables
                .iter()
                .map(|entry| NewIndex {
                    table: &entry.name,
                    ids: entry.spec.ids,
                    rows: entry.rows,
                    group: &groups[entry.group as usize],
                })
                .collect();
            self.check_indexes(&indexes, Purpose::Open)?
        };
        let mut by_category: Vec<Option<GroupTable>> = Vec::new();
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
        for entry in &manifest.tables {
            let (group, table) = by_category[entry.category.0 as usize].as_ref().expect("inserted above");
            group.reserve(table.local, entry.rows, size);
        }
        self.load_index(manifest, &by_category, size)?;
        let keeps = !manifest.versions.is_empty() && !self.options.read_only;
        for group in self.groups.read().iter() {
            if keeps {
                group.core.log.track();
            }
            retain_rows(group)?;
        }
        if keeps {
            self.adopt_versions(manifest)?;
        }
        for group in self.groups.read().iter() {
            group.core.log.loaded();
            if keeps {
                group.core.charge_log();
            }
        }
        self.fit_indexes();
        for entry in &manifest.tables {
            let (group, table) = by_category[entry.category.0 as usize].as_ref().expect("inserted above");
            let found = group.len(table.local) as u64;
            if found != entry.rows {
                let what = format!(
                    "table {:?} had {} rows at the checkpoint, but its index has {found}",
                    entry.name, entry.rows
                );
                return Err(StoreError::Corrupt { what });
            }
        }
        Ok(())
    }

    /// Let go of index memory that no row needs, if the memory is used up.
    fn fit_indexes(&self) {
        let groups = self.groups.read();
        let rows_min = groups.iter().map(|group| group.core.rows_min()).sum();
        if self.budget.allows(rows_min, Purpose::Grow) {
            return;
        }
        for group in groups.iter() {
            let fit = |shard: usize| group.shards[shard].state.write().fit_indexes(&group.core);
            group.workers.map_all(group.shards.len(), fit);
        }
    }

    /// Keep the rows and files of all versions.
    fn adopt_versions(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let volume = &*self.volume;
        let mut saved = self.saved.lock();
        let groups = self.groups.read();
        for entry in &manifest.versions {
            let version = files::load_version(volume, manifest, entry)?;
            let rows = files::load_row_sets(volume, &entry.rows, groups.len(), &manifest.moves)?;
            for (group, rows) in groups.iter().zip(rows) {
                group.core.log.adopt(entry.epoch, rows).map_err(|row| StoreError::Corrupt {
                    what: format!(
                        "version {:?} has row {row} of group {}, which does not exist in the log",
                        entry.name, group.core.number
                    ),
                })?;
            }
            saved.versions.push(KeptVersion::new(entry.clone(), &version));
        }
        Ok(())
    }

    /// Restore the sketch of a table with admission.
    fn restore_sketch(&self, manifest: &Manifest, table: &TableState) -> Result<(), StoreError> {
        let Some(sketch) = &table.sketch else { return Ok(()) };
        let name = table.category.0.to_string();
        let Some(entry) = manifest.sketches.iter().find(|entry| entry.name == name) else {
            // A repair could not keep it: counting starts again from zero.
            return Ok(());
        };
        let restored = sketch.lock().restore(files::load_attachment(&*self.volume, entry)?);
        if restored || self.options.alter.contains_key(&table.name) {
            return Ok(());
        }
        let what = format!("{} does not have the size of the sketch of table {:?}", entry.file, table.name);
        Err(StoreError::Corrupt { what })
    }
}

/// Retain in the log all rows that the index names.
fn retain_rows(group: &Group) -> Result<(), StoreError> {
    let results =
        group.workers.map_all(group.shards.len(), |shard| retain_rows_of(group, &group.shards[shard]));
    results.into_iter().collect()
}

fn retain_rows_of(group: &Group, cell: &ShardCell) -> Result<(), StoreError> {
    let mut retaining = group.core.log.retaining();
    let tables = group.tables.read().clone();
    let shard = cell.state.read();
    for table in &tables {
        let mut unknown = None;
        shard.on_device(table.local, |id, row| {
            if !retaining.row(row) {
                unknown = Some((id, row));
            }
        });
        if let Some((id, row)) = unknown {
            let key = group.key(table.local, id);
            let what = format!("the index has {key} at row {row}, which does not exist in the log");
            return Err(StoreError::Corrupt { what });
        }
    }
    retaining.finish();
    Ok(())
}
