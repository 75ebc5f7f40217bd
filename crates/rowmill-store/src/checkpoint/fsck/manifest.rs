//! Replaces a damaged manifest with another one.
//!
//! A manifest has a checksum, and so has everything it names. So a manifest that is undamaged and passes the
//! whole check is a checkpoint of the store. It may come from a crash between writing `MANIFEST.new` and
//! renaming it, or from a person who copied `MANIFEST` to another name with this prefix. Files of older
//! checkpoints are removed or overwritten in time, so an old copy rarely passes the check.

use rowmill_io::{DeviceError, Volume};

use super::repair::keep_aside;
use super::{Findings, FsckReport, check};
use crate::error::StoreError;
use crate::files::{MANIFEST, Manifest, located};

/// Make the newest other manifest that passes the whole check the checkpoint of the volume. `damage`
/// describes the damage of the current one.
///
/// # Errors
/// [`StoreError::Corrupt`] if there is none; nothing is changed then.
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
                "{damage}. Without it no row can be verified, and no other manifest ({MANIFEST}.new, \
                 {MANIFEST}-...) is intact with all files it names: restore a pushed checkpoint (rowmill restore) \
                 or a copy of the folder"
            ),
        });
    };
    match keep_aside(volume, &format!("{MANIFEST}.damaged")) {
        // The file does not exist at all.
        Err(StoreError::Device(DeviceError::Missing { .. })) => {}
        kept => kept?,
    }
    manifest.save(volume).map_err(|error| located(volume, error))?;
    report.problems.push(damage.to_owned());
    report.unnamed.push(format!(
        "changes of checkpoints after {}, if there were any: the manifest was replaced by {name}",
        manifest.epoch
    ));
    report.repaired = Some(manifest.epoch);
    Ok(report)
}
