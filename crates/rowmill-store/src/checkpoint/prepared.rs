//! Checkpoints in two phases, for stores that are parts of one larger checkpoint.
//!
//! A *prepared* checkpoint is durable under a manifest of its own, beside the last one: nothing that either names is
//! written over. Committing puts its manifest in the place of the other, in one step. A crash in between leaves both,
//! and only whoever keeps the parts together knows which of them holds: opening such a store for writing asks for the
//! number of the checkpoint it is to stand at, and lets go of the other.

use rowmill_io::Volume;

use crate::error::StoreError;
use crate::files::{MANIFEST, MANIFEST_PREPARED, Manifest, load_manifest, load_prepared};
use crate::store::{CheckpointInfo, Store};

impl Store {
    /// As [`Store::checkpoint`], but the last checkpoint stays what it is until [`Store::commit`]. Work may go on;
    /// the next checkpoint needs the commit first.
    ///
    /// # Errors
    /// As [`Store::checkpoint`], and [`StoreError::InDoubt`] when one waits already.
    pub fn prepare(&self, attachments: &[(&str, &[u8])]) -> Result<CheckpointInfo, StoreError> {
        self.with_saved("a checkpoint", |saved| {
            let written = self.write_checkpoint(saved, attachments)?;
            written.manifest.save_as(&*self.volume, MANIFEST_PREPARED)?;
            let info = written.info;
            saved.prepared = Some(Box::new(written));
            Ok(info)
        })
    }

    /// Make the prepared checkpoint the last one.
    ///
    /// # Errors
    /// Where none is prepared. A volume that fails refuses all later writes; which of the two checkpoints it has is
    /// then in doubt.
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

/// The manifest to open a volume at: number `at`, or where that is none, the last. Of two for writing, the other is gone
/// when this returns.
///
/// # Errors
/// [`StoreError::InDoubt`] without a number where somebody is to write, [`StoreError::NotAt`], and damaged files.
pub(crate) fn settle(
    volume: &dyn Volume,
    at: Option<u64>,
    read_only: bool,
) -> Result<Option<Manifest>, StoreError> {
    let committed = load_manifest(volume)?;
    let last = committed.as_ref().map_or(0, |manifest| manifest.epoch);
    // One that a repair has overtaken waits for nobody.
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
                Some(prepared) => format!("{last} and, prepared, {prepared}"),
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
        // A writer whose last sync failed may have left names that are not on the device yet: what only another manifest
        // names may be written over from now on.
        volume.sync()?;
    }
    Ok(chosen)
}
