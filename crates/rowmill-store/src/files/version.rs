//! Versions: earlier checkpoints that a manifest keeps.
//!
//! The file of a version is the manifest of that checkpoint without its segments and its own versions. Which
//! segments hold its rows changes when cleaning moves them, so the manifest of the store names the segments
//! of all its versions, and lists the moves since.

use std::io::{Read, Write};

use rowmill_io::{DeviceError, Volume};
use serde::{Deserialize, Serialize};

use super::error::FileError;
use super::frame::FileEntry;
use super::manifest::Manifest;
use super::name::{self, epoch_of};

/// A version as the manifest lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VersionEntry {
    /// Number of the checkpoint.
    pub(crate) epoch: u64,
    /// Name, unique among the versions of the store.
    pub(crate) name: String,
    /// When it was made, in seconds since 1970.
    pub(crate) made: u64,
    /// Step of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    /// Metric of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metric: Option<f64>,
    /// The manifest of the checkpoint.
    pub(crate) manifest: FileEntry,
    /// The rows of the checkpoint.
    pub(crate) rows: FileEntry,
}

/// Write the file of the version that `manifest` becomes.
///
/// # Errors
/// When writing fails.
pub(crate) fn save_version(volume: &dyn Volume, manifest: &Manifest) -> Result<FileEntry, FileError> {
    let mut alone = Manifest {
        versions: Vec::new(),
        moves: Vec::new(),
        rows: None,
        history: Vec::new(),
        ..manifest.clone()
    };
    alone.groups.iter_mut().for_each(|group| group.log.segments.clear());
    let bytes = alone.stamped().to_bytes();
    let name = name::version(manifest.epoch);
    let mut file = volume.create(&name)?;
    file.write_all(&bytes)
        .map_err(|error| DeviceError::from_io("write", volume.path(&name), 0, bytes.len(), error))?;
    file.sync()?;
    Ok(FileEntry { name, len: bytes.len() as u64, crc: rowmill_io::crc32c(&bytes) })
}

/// A version of the store that `latest` describes, as a checkpoint that can be opened: its index, with the
/// moves since, and the segments of `latest`.
///
/// # Errors
/// [`FileError::Corrupt`].
pub(crate) fn load_version(
    volume: &dyn Volume,
    latest: &Manifest,
    entry: &VersionEntry,
) -> Result<Manifest, FileError> {
    let FileEntry { name, len, crc } = &entry.manifest;
    let mut bytes = Vec::new();
    let file = volume.open(name).map_err(FileError::opening)?;
    file.take(len.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| DeviceError::from_io("read", volume.path(name), 0, bytes.len(), error))?;
    if (bytes.len() as u64, rowmill_io::crc32c(&bytes)) != (*len, *crc) {
        return Err(FileError::corrupt(name, "it does not match its checksum in the manifest"));
    }
    let mut version = Manifest::parse(&bytes)?;
    // Groups are never removed, so the groups of a version are the first ones of the store.
    let known = version.groups.iter().zip(&latest.groups).all(|(one, other)| one.spec == other.spec);
    if version.epoch != entry.epoch || version.groups.len() > latest.groups.len() || !known {
        return Err(FileError::corrupt(name, "it belongs to another checkpoint or store"));
    }
    version.groups.clone_from(&latest.groups);
    let later = latest.moves.iter().filter(|file| epoch_of(&file.name) > Some(entry.epoch));
    version.deltas.extend(later.cloned());
    version.rows = Some(entry.rows.clone());
    Ok(version.stamped())
}
