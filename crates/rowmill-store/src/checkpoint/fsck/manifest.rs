//! Another manifest in the place of a damaged one.
//!
//! A manifest is under a checksum, and so is everything it names, so one that is whole and of which a check finds
//! nothing wrong is a checkpoint of the store, whoever left it: a crash between writing `MANIFEST.new` and
//! renaming it, or a person who copied `MANIFEST` to another name that begins with it. Files of older checkpoints
//! are removed or written over in time, so an old copy is hardly ever whole any more, which the check notices.

use rowmill_io::{DeviceError, Volume};

use super::repair::keep_aside;
use super::{Findings, FsckReport, check};
use crate::error::StoreError;
use crate::files::{MANIFEST, Manifest, located};

/// Make the newest other manifest of which everything is proven the checkpoint of the volume; `damage` says what is wrong
/// with the one that is there.
///
/// # Errors
/// [`StoreError::Corrupt`] where there is none, and nothing is changed.
pub(super) fn replace(volume: &dyn Volume, damage: &str) -> Result<FsckReport, StoreError> {
    let mut newest: Option<(String, Manifest, FsckReport)> = None;
    for name in volume.list()?.into_iter().filter(|name| name.starts_with(MANIFEST) && name != MANIFEST) {
        let Ok(manifest) = Manifest::load_from(volume, &name) else { continue };
        if newest.as_ref().is_some_and(|(_, newer, _)| newer.epoch >= manifest.epoch) {
            continue;
        }
        match check(volume, manifest.clone()) {
            Ok(Findings { report, .. }) if report.is_clean() => newest = Some((name, manifest, report)),
            Ok(_) | Err(StoreError::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let Some((name, manifest, mut report)) = newest else {
        return Err(StoreError::Corrupt {
            what: format!(
                "{damage}. No row is proven without it, and no other file of that name ({MANIFEST}.new, \
                 {MANIFEST}-...) is whole with all it names: restore a checkpoint that was pushed (rowmill restore), \
                 or a copy of the folder"
            ),
        });
    };
    match keep_aside(volume, &format!("{MANIFEST}.damaged")) {
        // It is not there at all.
        Err(StoreError::Device(DeviceError::Missing { .. })) => {}
        kept => kept?,
    }
    manifest.save(volume).map_err(|error| located(volume, error))?;
    report.problems.push(damage.to_owned());
    report.unnamed.push(format!(
        "what checkpoints after {} changed, if there were any: {name} took the place",
        manifest.epoch
    ));
    report.repaired = Some(manifest.epoch);
    Ok(report)
}
