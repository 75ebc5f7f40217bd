//! Checks the versions of a store: their files, and each row of their indexes.

use std::collections::HashMap;

use rowmill_io::Volume;
use rowmill_rows::RowKey;

use super::index::Index;
use super::segments::Segments;
use super::{FsckReport, check_attachments, check_sketches, may_hold};
use crate::files::{self, Manifest, TableEntry, VersionEntry};

/// Check all versions and report their problems. Returns the numbers of those that are not intact.
pub(super) fn check(
    volume: &dyn Volume,
    latest: &Manifest,
    segments: &Segments,
    report: &mut FsckReport,
) -> Vec<u64> {
    let mut lost = Vec::new();
    for entry in &latest.versions {
        report.versions += 1;
        let mut own = FsckReport::default();
        if let Err(error) = check_version(volume, latest, entry, segments, &mut own) {
            own.problems.push(error);
        }
        report.files += own.files;
        if own.problems.is_empty() {
            continue;
        }
        lost.push(entry.epoch);
        let problems = own.problems.into_iter();
        report.problems.extend(problems.map(|problem| format!("version {:?}: {problem}", entry.name)));
        report.unnamed.push(format!("version {:?} of checkpoint {}", entry.name, entry.epoch));
    }
    lost
}

/// Check the list of the rows of the last checkpoint, which a push reads, against the index.
pub(super) fn check_rows(
    volume: &dyn Volume,
    latest: &Manifest,
    kept: &HashMap<RowKey, u32>,
    report: &mut FsckReport,
) {
    let Some(file) = &latest.rows else { return };
    report.files += 1;
    let groups = latest.groups.len();
    let sets = match files::load_row_sets(volume, file, groups, &latest.moves) {
        Ok(sets) => sets,
        Err(error) => return report.problems.push(error.to_string()),
    };
    let group_of: HashMap<u32, usize> =
        latest.tables.iter().map(|table| (table.category.0, table.group as usize)).collect();
    let listed = |(key, row): (&RowKey, &u32)| sets[group_of[&key.category.0]].has(*row);
    let count: usize = sets.iter().map(|rows| rows.rows().count()).sum();
    // Rows that are lost are problems of their own.
    if report.is_clean() && (count != kept.len() || !kept.iter().all(listed)) {
        report.problems.push(format!("{} names other rows than the index", file.name));
    }
}

fn check_version(
    volume: &dyn Volume,
    latest: &Manifest,
    entry: &VersionEntry,
    segments: &Segments,
    report: &mut FsckReport,
) -> Result<(), String> {
    report.files += 2;
    let mut version = files::load_version(volume, latest, entry).map_err(|error| error.to_string())?;
    check_attachments(volume, &version, report);
    check_sketches(volume, &mut version, report);
    let index = Index::load(volume, &version, report);
    let groups = version.groups.len();
    let rows = files::load_row_sets(volume, &entry.rows, groups, &latest.moves)
        .map_err(|error| error.to_string())?;
    let tables: HashMap<u32, &TableEntry> =
        version.tables.iter().map(|table| (table.category.0, table)).collect();
    let mut counts: HashMap<u32, u64> = HashMap::new();
    let mut by_group: Vec<Vec<(u32, RowKey)>> = vec![Vec::new(); groups];
    for (&key, &row) in &index.entries {
        let table = tables.get(&key.category.0).filter(|table| may_hold(table, key.id));
        let table = table.ok_or_else(|| format!("the index has {key}, which belongs to no table"))?;
        by_group[table.group as usize].push((row, key));
        *counts.entry(key.category.0).or_default() += 1;
    }
    for (group, entries) in by_group.iter_mut().enumerate() {
        entries.sort_unstable_by_key(|&(row, key)| (row, key.category, key.id));
        let missing = segments.missing(group as u32, entries);
        if missing > 0 {
            report
                .problems
                .push(format!("group {group}: {missing} of its rows are damaged or not in the log"));
        }
        if !rows[group].rows().eq(entries.iter().map(|(row, _)| *row)) {
            let name = &entry.rows.name;
            report.problems.push(format!("group {group}: {name} names other rows than the index"));
        }
    }
    for table in &version.tables {
        let found = counts.get(&table.category.0).copied().unwrap_or(0);
        if found != table.rows {
            let name = &table.name;
            report.problems.push(format!("table {name:?} had {} rows, its index has {found}", table.rows));
        }
    }
    Ok(())
}
