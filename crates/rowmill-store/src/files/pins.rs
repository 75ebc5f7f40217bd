//! Pinned checkpoints, whose files must be kept while they are copied.

use std::sync::Arc;

use rowmill_sync::{Mutex, ranks};

use super::manifest::Manifest;

/// The pinned checkpoints of an open store.
#[derive(Debug, Default)]
pub(crate) struct Pins(Mutex<Vec<Arc<Manifest>>, ranks::Pins>);

impl Pins {
    /// Whether a pinned checkpoint needs the file.
    pub(crate) fn hold(&self, name: &str) -> bool {
        self.0.lock().iter().any(|manifest| manifest.file_names().any(|file| file == name))
    }

    /// Keep the files of a checkpoint.
    pub(crate) fn add(&self, manifest: &Arc<Manifest>) {
        self.0.lock().push(Arc::clone(manifest));
    }

    /// Undo one [`Pins::add`] of this manifest.
    pub(crate) fn remove(&self, manifest: &Arc<Manifest>) {
        self.0.lock().retain(|pinned| !Arc::ptr_eq(pinned, manifest));
    }
}
