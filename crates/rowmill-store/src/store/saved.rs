//! The last checkpoint of an open store.

use std::time::Duration;

use crate::files::{AttachmentEntry, FileEntry, Manifest, VersionEntry};

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
    pub(crate) rows: Option<FileEntry>,
    pub(crate) versions: Vec<KeptVersion>,
    pub(crate) moves: Vec<FileEntry>,
    /// The last checkpoint of the volume when it was opened. Later than this one for a store opened at a
    /// version.
    pub(crate) latest: u64,
    /// A prepared checkpoint that is not committed yet.
    pub(crate) prepared: Option<Box<Written>>,
}

/// A version that the last checkpoint keeps.
#[derive(Clone, Debug)]
pub(crate) struct KeptVersion {
    pub(crate) entry: VersionEntry,
    /// Names of the files that it needs.
    pub(crate) files: Vec<String>,
}

impl KeptVersion {
    pub(crate) fn new(entry: VersionEntry, manifest: &Manifest) -> Self {
        Self { entry, files: manifest.file_names().map(str::to_owned).collect() }
    }
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
            rows: None,
            versions: Vec::new(),
            moves: Vec::new(),
            latest: next_epoch - 1,
            prepared: None,
        };
        if let Some(manifest) = manifest {
            saved.snapshot.clone_from(&manifest.snapshot);
            saved.deltas.clone_from(&manifest.deltas);
            saved.history.clone_from(&manifest.history);
            saved.attachments.clone_from(&manifest.attachments);
            saved.sketches.clone_from(&manifest.sketches);
            saved.lineage.clone_from(&manifest.lineage);
            saved.rows.clone_from(&manifest.rows);
            saved.moves.clone_from(&manifest.moves);
        }
        saved
    }

    /// Whether a version needs the file.
    pub(crate) fn keeps(&self, name: &str) -> bool {
        self.versions.iter().any(|version| version.files.iter().any(|file| file == name))
    }
}
