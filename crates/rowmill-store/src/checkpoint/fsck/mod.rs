//! `fsck`: verifies every block of a store, and repairs a damaged store by keeping its intact rows.
//!
//! It reads everything that the last checkpoint names: manifest, index files, history, attachments, and every
//! block of every segment. Then it compares them. Each entry of the index must name a row whose block matches
//! its checksum and whose key in the trailer equals the entry's. No two entries may name one row. The number
//! of rows must equal the count in the manifest.
//!
//! A row is *intact* when it passes all these checks. If a file of the index is damaged, entries of later
//! files are still used. A row without such an entry is intact only if three conditions hold. Every
//! trailer of its group is undamaged, and the log holds no other version of the row. The table has exactly as
//! many rows as are found, so that none of them was deleted.
//!
//! Every version is checked in the same way. A repair drops versions that are not intact as a whole.
//!
//! Without its manifest no row can be verified. Another manifest in the folder, left by a crash or kept by a
//! person, replaces it only if it and everything it names are undamaged (see `manifest`). Otherwise there is
//! no repair.
//!
//! Needs about 60 bytes of memory per row, independent of the budget of the store.

mod index;
mod manifest;
mod repair;
mod segments;
mod versions;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rowmill_io::Volume;
use rowmill_rows::{IdRange, RowKey};

use crate::error::StoreError;
use crate::files::{self, DeltaReader, Manifest, TableEntry, load_manifest, load_prepared};

use index::Index;
use segments::Segments;

/// How often a check restarts because a writer made the next checkpoint meanwhile.
const RESTARTS_MAX: usize = 4;

/// Result of a check: what was read, and the damage found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FsckReport {
    /// Number of the checkpoint that was read.
    pub epoch: u64,
    /// Number of files read: the manifest, the index, attachments, logs.
    pub files: u64,
    /// Number of segments of the logs.
    pub segments: u64,
    /// Number of blocks of 4 KiB read from the logs.
    pub blocks: u64,
    /// Number of intact rows.
    pub rows: u64,
    /// Number of versions.
    pub versions: u64,
    /// The problems found, one sentence each; empty for a clean store.
    pub problems: Vec<String>,
    /// Rows that are not intact, by table and id. A repair drops them.
    pub dropped: Vec<(String, u64)>,
    /// Losses of a repair that cannot be listed by id: numbers of rows of a table, attachments.
    pub unnamed: Vec<String>,
    /// Number of the checkpoint that a repair has made; `None` if nothing was repaired.
    pub repaired: Option<u64>,
}

impl FsckReport {
    /// Whether there are no problems.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Findings of a check, for a repair.
struct Findings {
    manifest: Manifest,
    report: FsckReport,
    /// The rows to keep, with their row numbers.
    kept: HashMap<RowKey, u32>,
    /// Group and place of each segment with damage.
    damaged: Vec<(u32, u32)>,
    /// Names and bytes of the attachments.
    attachments: Vec<(String, Vec<u8>)>,
    /// Numbers of the versions that are not intact.
    lost_versions: Vec<u64>,
}

/// Check the store in a volume. With `repair`, if there are problems, write a new checkpoint of all intact
/// rows. The repaired store can be opened and is clean. Repairing a clean store changes nothing.
///
/// # Errors
/// [`StoreError::Missing`], [`StoreError::Newer`], and [`StoreError::Corrupt`] for a damaged manifest; a
/// repair raises the latter only if no other manifest can replace it. A volume that cannot be read, or
/// written by a repair. [`StoreError::InDoubt`] when repairing a store with a prepared checkpoint. Without
/// `repair`, another process may have the store open.
pub fn fsck(volume: &Arc<dyn Volume>, repair: bool) -> Result<FsckReport, StoreError> {
    let _lock = if repair { Some(volume.lock()?) } else { None };
    for _ in 0..RESTARTS_MAX {
        let manifest = match load_manifest(&**volume) {
            Ok(Some(manifest)) => manifest,
            Ok(None) => return Err(StoreError::Missing { location: volume.location() }),
            Err(StoreError::Corrupt { what }) if repair => return manifest::replace(&**volume, &what),
            Err(error) => return Err(error),
        };
        let epoch = manifest.epoch;
        let findings = check(&**volume, manifest)?;
        if load_manifest(&**volume)?.is_some_and(|manifest| manifest.epoch == epoch) {
            if findings.report.is_clean() || !repair {
                return Ok(findings.report);
            }
            if let Some(prepared) = load_prepared(&**volume)?.filter(|prepared| prepared.epoch > epoch) {
                // The repair would overwrite it, and only the manifest of all parts says which of the two
                // holds.
                let (location, prepared) = (volume.location(), prepared.epoch);
                return Err(StoreError::InDoubt { location, committed: epoch, prepared });
            }
            return repair::repair(volume, findings);
        }
    }
    Err(StoreError::Superseded)
}

fn check(volume: &dyn Volume, mut manifest: Manifest) -> Result<Findings, StoreError> {
    let mut report = FsckReport { epoch: manifest.epoch, files: 1, ..FsckReport::default() };
    let attachments = check_attachments(volume, &manifest, &mut report);
    check_history(volume, &manifest, &mut report)?;
    check_sketches(volume, &mut manifest, &mut report);
    let mut index = Index::load(volume, &manifest, &mut report);
    let segments = Segments::open(volume, &mut manifest, &mut report)?;
    if !index.complete {
        index.complete_from(&manifest, &segments, &mut report);
    }
    let tables: HashMap<u32, &TableEntry> =
        manifest.tables.iter().map(|table| (table.category.0, table)).collect();
    let mut by_group: Vec<Vec<(u32, RowKey)>> = vec![Vec::new(); manifest.groups.len()];
    for (key, row) in std::mem::take(&mut index.entries) {
        match tables.get(&key.category.0) {
            Some(table) if may_hold(table, key.id) => by_group[table.group as usize].push((row, key)),
            Some(table) => {
                report.problems.push(format!(
                    "the index has id {} of table {:?}, which is outside the ids of the table",
                    key.id as i64, table.name
                ));
                report.dropped.push((table.name.clone(), key.id));
            }
            None => report.problems.push(format!("the index has {key}, which belongs to no table")),
        }
    }
    let lost_versions = versions::check(volume, &manifest, &segments, &mut report);
    let mut kept = HashMap::new();
    let mut damaged = Vec::new();
    for (group, mut entries) in (0..).zip(by_group) {
        entries.sort_unstable_by_key(|&(row, key)| (row, key.category, key.id));
        for key in segments.prove(group, &entries, &mut kept, &mut damaged, &mut report) {
            report.dropped.push((tables[&key.category.0].name.clone(), key.id));
        }
    }
    versions::check_rows(volume, &manifest, &kept, &mut report);
    report.blocks = segments.blocks_read();
    report.rows = kept.len() as u64;
    count(&manifest, &kept, &mut report);
    report.dropped.extend(
        index
            .unproven
            .iter()
            .filter_map(|key| tables.get(&key.category.0).map(|table| (table.name.clone(), key.id))),
    );
    report.dropped.sort_unstable();
    report.dropped.dedup();
    name_the_rest(&manifest, &kept, &index, &segments, &mut report);
    Ok(Findings { manifest, report, kept, damaged, attachments, lost_versions })
}

fn may_hold(table: &TableEntry, id: u64) -> bool {
    match table.spec.ids {
        IdRange::Sparse => true,
        IdRange::Dense { rows } => id < rows,
    }
}

fn check_attachments(
    volume: &dyn Volume,
    manifest: &Manifest,
    report: &mut FsckReport,
) -> Vec<(String, Vec<u8>)> {
    let mut healthy = Vec::new();
    for entry in &manifest.attachments {
        report.files += 1;
        match files::load_attachment(volume, entry) {
            Ok(bytes) => healthy.push((entry.name.clone(), bytes)),
            Err(error) => {
                report.problems.push(error.to_string());
                report.unnamed.push(format!("attachment {:?}", entry.name));
            }
        }
    }
    healthy
}

/// Rows do not need the lists of earlier changes, and a copy of a checkpoint may lack them.
fn check_history(
    volume: &dyn Volume,
    manifest: &Manifest,
    report: &mut FsckReport,
) -> Result<(), StoreError> {
    let names = volume.list()?;
    for file in manifest.history.iter().filter(|file| names.contains(&file.name)) {
        report.files += 1;
        let read = DeltaReader::open(volume, file).and_then(|list| list.for_each(|_, _| Ok(())));
        if let Err(error) = read {
            report.problems.push(error.to_string());
            report.unnamed.push(format!("the changes listed in {}", file.name));
        }
    }
    Ok(())
}

/// Remove damaged sketches from the manifest: their tables then count ids from zero.
fn check_sketches(volume: &dyn Volume, manifest: &mut Manifest, report: &mut FsckReport) {
    manifest.sketches.retain(|entry| {
        report.files += 1;
        let Err(error) = files::load_attachment(volume, entry) else { return true };
        report.problems.push(error.to_string());
        report.unnamed.push(format!("the counts of ids without a row (sketch) of category {}", entry.name));
        false
    });
}

/// Compare the number of rows of each table with the manifest.
fn count(manifest: &Manifest, kept: &HashMap<RowKey, u32>, report: &mut FsckReport) {
    // If there are other problems, a different number is expected.
    if !report.is_clean() {
        return;
    }
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for key in kept.keys() {
        *counts.entry(key.category.0).or_default() += 1;
    }
    for table in &manifest.tables {
        let found = counts.get(&table.category.0).copied().unwrap_or(0);
        if found != table.rows {
            report.problems.push(format!(
                "table {:?} had {} rows at the checkpoint, but its index has {found}",
                table.name, table.rows
            ));
        }
    }
}

/// Report how many lost rows of each table cannot be listed by id.
fn name_the_rest(
    manifest: &Manifest,
    kept: &HashMap<RowKey, u32>,
    index: &Index,
    segments: &Segments,
    report: &mut FsckReport,
) {
    if report.is_clean() {
        return;
    }
    for table in &manifest.tables {
        if !index.complete && segments.is_whole(table.group) {
            // Every row is in the log, so every lost row is listed.
            continue;
        }
        let of_table = |key: &&RowKey| key.category == table.category;
        let kept = kept.keys().filter(of_table).count() as u64;
        // Rows that may not have existed at all.
        let doubtful = index.unproven.iter().filter(of_table).count() as u64;
        let listed = report.dropped.iter().filter(|(name, _)| *name == table.name).count() as u64;
        let lost = table.rows.saturating_sub(kept + (listed - doubtful.min(listed)));
        if lost > 0 {
            let bound = if doubtful > 0 { "up to " } else { "" };
            report
                .unnamed
                .push(format!("{bound}{lost} rows of table {:?} whose ids are unknown", table.name));
        }
    }
}
