//! Removing what no checkpoint needs any more.

use std::collections::HashSet;

use rowmill_io::Volume;

use super::error::FileError;
use super::manifest::Manifest;
use super::name;

/// Remove deltas, snapshots and attachments that `manifest`, the durable one, does not name, and a
/// manifest that was never finished. Files that `is_pinned` stay. Returns the names removed.
///
/// Files of later epochs stay: the next checkpoint may be writing them. (What a crash left of a later
/// epoch goes when that epoch comes: it is written over, or unnamed by then.) Logs and files this crate
/// did not name are never touched.
///
/// # Errors
/// When the volume fails; what was removed before is gone, and nothing named is.
pub(crate) fn collect_garbage(
    volume: &dyn Volume,
    manifest: &Manifest,
    is_pinned: &dyn Fn(&str) -> bool,
) -> Result<Vec<String>, FileError> {
    let named: HashSet<&str> = manifest.file_names().collect();
    let is_garbage = |file: &String| {
        let past = name::epoch_of(file).is_some_and(|epoch| epoch <= manifest.epoch);
        (past && !named.contains(file.as_str()) && !is_pinned(file)) || file == name::MANIFEST_NEW
    };
    let garbage: Vec<String> = volume.list()?.into_iter().filter(is_garbage).collect();
    for file in &garbage {
        volume.remove(file)?;
    }
    Ok(garbage)
}
