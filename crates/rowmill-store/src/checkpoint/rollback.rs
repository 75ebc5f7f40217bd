//! Rollback: makes a version the last checkpoint, by writing a manifest.
//!
//! The new checkpoint has the index of the version, the segments of the store, and the next checkpoint
//! number. So numbers of checkpoints and segments continue, and later versions are kept. Changes since an earlier
//! checkpoint are not listed across a rollback. The feed publishes a rollback when the store is opened with
//! it, because the manifest names the frame of the version's checkpoint.

use std::sync::Arc;

use rowmill_io::Volume;

use super::checkpoint::continued;
use super::versions::find_version;
use crate::error::StoreError;
use crate::files::{
    MANIFEST, MANIFEST_PREPARED, Manifest, epoch_of, load_manifest, load_prepared, load_version,
};
use crate::options::Background;

/// Make `version`, a name or a checkpoint number, the last checkpoint of the store in a volume. Returns the
/// number of the new checkpoint.
///
/// # Errors
/// [`StoreError::Option`] if there is no such version, [`StoreError::InDoubt`],
/// [`rowmill_io::DeviceError::Locked`] if the store is open for writing, and damaged files.
pub fn rollback(volume: &Arc<dyn Volume>, version: &str) -> Result<u64, StoreError> {
    write(&**volume, version, MANIFEST)
}

/// As [`rollback`], but only prepare the checkpoint, as [`crate::Store::prepare`] does.
///
/// # Errors
/// As [`rollback`].
pub fn prepare_rollback(volume: &Arc<dyn Volume>, version: &str) -> Result<u64, StoreError> {
    write(&**volume, version, MANIFEST_PREPARED)
}

/// Forget `version`, a name or a checkpoint number. The next writer uses its space again.
///
/// # Errors
/// As [`rollback`].
pub fn drop_version(volume: &Arc<dyn Volume>, version: &str) -> Result<(), StoreError> {
    let volume = &**volume;
    let _lock = volume.lock()?;
    let mut latest = settled(volume)?;
    let epoch = find_version(volume, &latest, version)?.epoch;
    latest.versions.retain(|entry| entry.epoch != epoch);
    let oldest = latest.versions.first().map(|entry| entry.epoch);
    latest.moves.retain(|file| oldest.is_some() && epoch_of(&file.name) > oldest);
    latest.stamped().save(volume)?;
    Ok(())
}

fn write(volume: &dyn Volume, version: &str, name: &str) -> Result<u64, StoreError> {
    let _lock = volume.lock()?;
    let latest = settled(volume)?;
    let entry = find_version(volume, &latest, version)?;
    let chosen = load_version(volume, &latest, entry)?;
    let epoch = latest.epoch + 1;
    let lineage = continued(&latest.lineage, epoch, Background::Threads.incarnation());
    let manifest = Manifest {
        epoch,
        lineage,
        history: Vec::new(),
        versions: latest.versions.clone(),
        moves: latest.moves.clone(),
        ..chosen
    };
    manifest.stamped().save_as(volume, name)?;
    Ok(epoch)
}

/// The last checkpoint of a volume, if no other is in doubt.
fn settled(volume: &dyn Volume) -> Result<Manifest, StoreError> {
    let Some(latest) = load_manifest(volume)? else {
        return Err(StoreError::Missing { location: volume.location() });
    };
    match load_prepared(volume)?.filter(|prepared| prepared.epoch > latest.epoch) {
        None => Ok(latest),
        Some(prepared) => Err(StoreError::InDoubt {
            location: volume.location(),
            committed: latest.epoch,
            prepared: prepared.epoch,
        }),
    }
}
