//! Removes files that no checkpoint needs any more.

use std::collections::HashSet;

use rowmill_io::Volume;

use super::error::FileError;
use super::manifest::Manifest;
use super::name;

/// Remove deltas, snapshots and attachments that the durable `manifest` does not name, and an unfinished
/// manifest. Files for which `is_pinned` is true stay. Returns the names removed.
///
/// Files of later epochs stay, because the next checkpoint may be writing them. Files that a crash left for a
/// later epoch are overwritten or removed once that epoch is reached. Logs and files not named by this crate
/// are never touched.
///
/// # Errors
/// When the volume fails. Some files may have been removed, but none that is named or pinned.
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
