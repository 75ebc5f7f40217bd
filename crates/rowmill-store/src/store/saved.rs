//! The last checkpoint of an open store.

use std::time::Duration;

use crate::files::{AttachmentEntry, FileEntry, Manifest};

/// Metrics of a completed checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// Its number. Later checkpoints have larger numbers.
    pub epoch: u64,
    /// Rows saved: changed since the previous checkpoint and still in memory.
    pub rows_saved: u64,
    /// Bytes written to the logs.
    pub log_bytes: u64,
    /// Bytes of index files and attachments written.
    pub file_bytes: u64,
    /// How long changes of rows were blocked.
    pub stall: Duration,
    /// Total duration.
    pub duration: Duration,
}

/// The parts of the durable checkpoint.
#[derive(Debug)]
pub(crate) struct Saved {
    /// Number of the next checkpoint.
    pub(crate) next_epoch: u64,
    pub(crate) snapshot: Option<FileEntry>,
    pub(crate) deltas: Vec<FileEntry>,
    pub(crate) history: Vec<FileEntry>,
    pub(crate) attachments: Vec<AttachmentEntry>,
    pub(crate) sketches: Vec<AttachmentEntry>,
    pub(crate) lineage: Vec<(u64, u64)>,
    /// A prepared checkpoint that is not committed yet.
    pub(crate) prepared: Option<Box<Written>>,
}

/// A checkpoint whose files are written. Its manifest makes it durable.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) manifest: Manifest,
    pub(crate) next: Saved,
    /// Number of the cut in each group's log.
    pub(crate) cuts: Vec<u64>,
    pub(crate) info: CheckpointInfo,
}

impl Saved {
    pub(crate) fn new(next_epoch: u64, manifest: Option<&Manifest>) -> Self {
        let mut saved = Self {
            next_epoch,
            snapshot: None,
            deltas: Vec::new(),
            history: Vec::new(),
            attachments: Vec::new(),
            sketches: Vec::new(),
            lineage: Vec::new(),
            prepared: None,
        };
        if let Some(manifest) = manifest {
            saved.snapshot.clone_from(&manifest.snapshot);
            saved.deltas.clone_from(&manifest.deltas);
            saved.history.clone_from(&manifest.history);
            saved.attachments.clone_from(&manifest.attachments);
            saved.sketches.clone_from(&manifest.sketches);
            saved.lineage.clone_from(&manifest.lineage);
        }
        saved
    }
}
