//! Repair: writes a new checkpoint of all intact rows.
//!
//! The store opens at the old checkpoint until the new manifest replaces it in one step; until then nothing
//! it names is overwritten. Intact rows of damaged segments move to new segments. The new checkpoint does not
//! name the damaged segments.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use rowmill_io::{DeviceError, Volume};

use super::{Findings, FsckReport, check};
use crate::error::StoreError;
use crate::files::{MANIFEST, SnapshotWriter, load_manifest};
use crate::options::{Background, StoreOptions};
use crate::store::Store;

/// Address space for the index of the kept rows; unused parts take no memory.
const MEMORY: u64 = 64 << 30;

pub(super) fn repair(volume: &Arc<dyn Volume>, findings: Findings) -> Result<FsckReport, StoreError> {
    let Findings { mut manifest, mut report, kept, damaged, attachments, lost_versions } = findings;
    keep_aside(&**volume, &format!("{MANIFEST}-{}.damaged", manifest.epoch))?;
    manifest.epoch += 1;
    let mut writer = SnapshotWriter::create(&**volume, manifest.epoch)?;
    let mut sorted: Vec<_> = kept.into_iter().collect();
    sorted.sort_unstable();
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for (key, row) in sorted {
        writer.push(key.category, key.id, row)?;
        *counts.entry(key.category.0).or_default() += 1;
    }
    manifest.snapshot = Some(writer.finish()?);
    manifest.deltas.clear();
    // Dropped rows are in no list of changes, so followers must copy the whole store.
    manifest.history.clear();
    manifest.attachments.clear();
    manifest.versions.retain(|version| !lost_versions.contains(&version.epoch));
    for table in &mut manifest.tables {
        table.rows = counts.get(&table.category.0).copied().unwrap_or(0);
    }
    let options = StoreOptions {
        memory: MEMORY,
        threads: 1,
        background: Background::Turns { incarnation: Background::Threads.incarnation() },
        ..StoreOptions::default()
    };
    let store = Store::open_at(volume, Some(manifest), options)?;
    for (group, place) in damaged {
        let group = Arc::clone(&store.groups.read()[group as usize]);
        // The damage is already known: this is a damaged segment.
        let (_, _damage) = group.move_rows(place)?;
    }
    let attached: Vec<(&str, &[u8])> =
        attachments.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let info = store.checkpoint(&attached)?;
    store.close();
    drop(store);
    report.repaired = Some(info.epoch);
    let again = load_manifest(&**volume)?.map(|manifest| check(&**volume, manifest)).transpose()?;
    match again {
        Some(again) if again.report.is_clean() => Ok(report),
        again => Err(StoreError::Corrupt {
            what: format!(
                "the repaired store is not clean: {:?}",
                again.map(|again| again.report.problems).unwrap_or_default()
            ),
        }),
    }
}

/// Copy the manifest to `name`, so that its content can be inspected later.
pub(super) fn keep_aside(volume: &dyn Volume, name: &str) -> Result<(), StoreError> {
    let failed = |operation, name, error| DeviceError::from_io(operation, volume.path(name), 0, 0, error);
    let mut bytes = Vec::new();
    volume.open(MANIFEST)?.read_to_end(&mut bytes).map_err(|error| failed("read", MANIFEST, error))?;
    let mut copy = volume.create(name)?;
    copy.write_all(&bytes).map_err(|error| failed("write", name, error))?;
    copy.sync()?;
    Ok(volume.sync()?)
}
