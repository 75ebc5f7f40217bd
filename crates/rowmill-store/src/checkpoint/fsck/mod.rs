//! Proof reading a store, block by block, and keeping what is proven of a damaged one.
//!
//! Everything the last checkpoint names is read: manifest, index files, history, attachments, and every block of
//! every segment. Then the parts are compared: each entry of the index must name a row whose block has its
//! checksum and whose key, in the trailer, is the entry's; no two entries name one row; and there must be
//! as many as the manifest counted.
//!
//! *Proven* is a row that passes all of that. Where a file of the index is damaged, entries of later files
//! are still proven; of the rest, a row is proven only when every trailer of its group is whole, no other
//! version of it lies in the log, and the table has just as many rows as are found, so that none of them
//! was deleted.
//!
//! A damaged manifest proves nothing. Another one in the folder, left by a crash or kept by a person, takes its
//! place only if it is whole, and all it names too (`manifest`); otherwise there is no repair.
//!
//! Takes some 60 bytes of memory per row, whatever the budget of the store.

mod index;
mod manifest;
mod repair;
mod segments;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rowmill_io::Volume;
use rowmill_rows::{IdRange, RowKey};

use crate::error::StoreError;
use crate::files::{self, DeltaReader, Manifest, TableEntry, load_manifest, load_prepared};

use index::Index;
use segments::Segments;

/// Times a check begins again because a writer made the next checkpoint meanwhile.
const RESTARTS_MAX: usize = 4;

/// What was read of a store, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FsckReport {
    /// The checkpoint that was read.
    pub epoch: u64,
    /// Files read: the manifest, the index, attachments, logs.
    pub files: u64,
    /// Segments of the logs.
    pub segments: u64,
    /// Blocks of 4 KiB read from the logs.
    pub blocks: u64,
    /// Rows that are proven.
    pub rows: u64,
    /// What is wrong, a sentence each; empty for a clean store.
    pub problems: Vec<String>,
    /// Rows that are not proven, by table and id. A repair drops them.
    pub dropped: Vec<(String, u64)>,
    /// What a repair drops and cannot list by id: numbers of rows of a table, attachments.
    pub unnamed: Vec<String>,
    /// The checkpoint a repair has made; none if nothing was repaired.
    pub repaired: Option<u64>,
}

impl FsckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// What a check found, for a repair.
struct Findings {
    manifest: Manifest,
    report: FsckReport,
    /// The rows to keep: where each is.
    kept: HashMap<RowKey, u32>,
    /// Places, by group, of segments that are damaged somewhere.
    damaged: Vec<(u32, u32)>,
    /// Names and bytes.
    attachments: Vec<(String, Vec<u8>)>,
}

/// Check the store in a volume; with `repair`, write a new checkpoint of what is proven if something is
/// wrong. What is left opens, and is clean. A repair of a clean store changes nothing.
///
/// # Errors
/// [`StoreError::Missing`], [`StoreError::Newer`], [`StoreError::Corrupt`] for a damaged manifest (when repairing: that
/// no other can replace), and a volume that cannot be read, or written when repairing. Another process may hold the store while it is
/// only checked. [`StoreError::InDoubt`] when repairing a store with a prepared checkpoint.
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
                // The repair would write over it, and which of the two holds is not known here.
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
                    "the index has id {} of table {:?}, which it cannot hold",
                    key.id as i64, table.name
                ));
                report.dropped.push((table.name.clone(), key.id));
            }
            None => report.problems.push(format!("the index has {key}, of no table")),
        }
    }
    let mut kept = HashMap::new();
    let mut damaged = Vec::new();
    for (group, mut entries) in (0..).zip(by_group) {
        entries.sort_unstable_by_key(|&(row, key)| (row, key.category, key.id));
        for key in segments.prove(group, &entries, &mut kept, &mut damaged, &mut report) {
            report.dropped.push((tables[&key.category.0].name.clone(), key.id));
        }
    }
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
    Ok(Findings { manifest, report, kept, damaged, attachments })
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

/// Lists of earlier changes are not needed by the rows; a copy of a checkpoint may come without them.
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

/// Leave damaged sketches out of the manifest: their tables count ids anew.
fn check_sketches(volume: &dyn Volume, manifest: &mut Manifest, report: &mut FsckReport) {
    manifest.sketches.retain(|entry| {
        report.files += 1;
        let Err(error) = files::load_attachment(volume, entry) else { return true };
        report.problems.push(error.to_string());
        report.unnamed.push(format!("how often ids without a row of category {} were asked for", entry.name));
        false
    });
}

/// Rows per table, against what the manifest counted.
fn count(manifest: &Manifest, kept: &HashMap<RowKey, u32>, report: &mut FsckReport) {
    // Where anything else is wrong, a number that differs is no news.
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
                "table {:?} had {} rows at the checkpoint, its index has {found}",
                table.name, table.rows
            ));
        }
    }
}

/// Say how many rows of each table are lost without a name.
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
            // Every row is in the log, so every one is listed.
            continue;
        }
        let of_table = |key: &&RowKey| key.category == table.category;
        let kept = kept.keys().filter(of_table).count() as u64;
        // Of these it is not known whether they were there at all.
        let doubtful = index.unproven.iter().filter(of_table).count() as u64;
        let listed = report.dropped.iter().filter(|(name, _)| *name == table.name).count() as u64;
        let lost = table.rows.saturating_sub(kept + (listed - doubtful.min(listed)));
        if lost > 0 {
            let bound = if doubtful > 0 { "up to " } else { "" };
            report.unnamed.push(format!("{bound}{lost} rows of table {:?} that nothing names", table.name));
        }
    }
}
