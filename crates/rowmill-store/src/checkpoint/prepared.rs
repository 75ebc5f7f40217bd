//! Checkpoints in two phases, for stores that are parts of one larger checkpoint.
//!
//! A *prepared* checkpoint is durable under a separate manifest, besides the last one. Segments and files
//! that either names are not overwritten. Committing replaces the last manifest with it in one step. A crash in
//! between leaves both, and only the manifest of all parts says which of them holds. So opening such a store
//! for writing requires the number of the checkpoint; the other checkpoint is dropped.

use std::sync::Arc;

use rowmill_io::Volume;

use super::versions::NewVersion;
use crate::error::StoreError;
use crate::files::{MANIFEST, MANIFEST_PREPARED, Manifest, load_manifest, load_prepared};
use crate::store::{CheckpointInfo, Store};

impl Store {
    /// As [`Store::checkpoint`], but the last checkpoint stays the last one until [`Store::commit`]. Work may
    /// continue. The next checkpoint requires the commit first.
    ///
    /// # Errors
    /// As [`Store::checkpoint`], and [`StoreError::InDoubt`] when one is already prepared.
    pub fn prepare(&self, attachments: &[(&str, &[u8])]) -> Result<CheckpointInfo, StoreError> {
        self.prepare_as(attachments, None)
    }

    /// As [`Store::prepare`], and [`Store::checkpoint_as`].
    ///
    /// # Errors
    /// As [`Store::prepare`].
    pub fn prepare_as(
        &self,
        attachments: &[(&str, &[u8])],
        version: Option<&NewVersion>,
    ) -> Result<CheckpointInfo, StoreError> {
        self.with_saved("a checkpoint", |saved| {
            let written = self.write_checkpoint(saved, attachments, version)?;
            written.manifest.save_as(&*self.volume, MANIFEST_PREPARED)?;
            let info = written.info;
            saved.prepared = Some(Box::new(written));
            Ok(info)
        })
    }

    /// Make the prepared checkpoint the last one.
    ///
    /// # Errors
    /// When none is prepared. If the volume fails, the store refuses all later writes, and which of the two
    /// checkpoints is the last one is then in doubt.
    pub fn commit(&self) -> Result<CheckpointInfo, StoreError> {
        self.with_saved("a commit", |saved| {
            let written = saved.prepared.take().ok_or_else(|| StoreError::Option {
                option: "commit",
                expected: "called after prepare".into(),
                got: format!("no checkpoint prepared after {}", saved.next_epoch - 1),
            })?;
            self.volume.rename(MANIFEST_PREPARED, MANIFEST)?;
            self.volume.sync()?;
            self.adopt_checkpoint(saved, *written)
        })
    }

    pub(crate) fn in_doubt(&self, committed: u64, prepared: u64) -> StoreError {
        StoreError::InDoubt { location: self.location(), committed, prepared }
    }
}

/// Settle a volume with a prepared checkpoint at checkpoint `at`, as opening the store for writing does. It
/// reads no index.
///
/// # Errors
/// As opening the store.
pub fn settle_at(volume: &Arc<dyn Volume>, at: u64) -> Result<(), StoreError> {
    let _lock = volume.lock()?;
    settle(&**volume, Some(at), false).map(drop)
}

/// The manifest to open a volume at: checkpoint `at`, or the last one if `None`. When opened for writing, the
/// other manifest is removed when this returns.
///
/// # Errors
/// [`StoreError::InDoubt`] for writing without a number, [`StoreError::NotAt`], and damaged files.
pub(crate) fn settle(
    volume: &dyn Volume,
    at: Option<u64>,
    read_only: bool,
) -> Result<Option<Manifest>, StoreError> {
    let committed = load_manifest(volume)?;
    let last = committed.as_ref().map_or(0, |manifest| manifest.epoch);
    // A prepared checkpoint that a repair has overtaken is obsolete.
    let prepared = load_prepared(volume)?.filter(|manifest| manifest.epoch > last);
    let doubt = prepared.as_ref().map(|manifest| manifest.epoch);
    let chosen = match (at, prepared) {
        (None, Some(Manifest { epoch: prepared, .. })) if !read_only => {
            return Err(StoreError::InDoubt { location: volume.location(), committed: last, prepared });
        }
        (Some(at), Some(prepared)) if prepared.epoch == at => {
            if !read_only {
                volume.rename(MANIFEST_PREPARED, MANIFEST)?;
            }
            Some(prepared)
        }
        (Some(at), _) if last != at => {
            let there = match doubt {
                Some(prepared) => format!("{last} (and {prepared}, prepared)"),
                None => last.to_string(),
            };
            return Err(StoreError::NotAt { location: volume.location(), at, there });
        }
        (Some(_), Some(_)) if !read_only => {
            volume.remove(MANIFEST_PREPARED)?;
            committed
        }
        _ => committed,
    };
    if !read_only {
        // A writer whose last sync failed may have left file names that are not durable yet. From now on,
        // files named only by the other manifest may be overwritten.
        volume.sync()?;
    }
    Ok(chosen)
}
