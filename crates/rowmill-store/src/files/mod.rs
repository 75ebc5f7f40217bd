//! The files of a checkpoint besides the logs, in the store's volume.
//!
//! A checkpoint is the file `MANIFEST`. It names everything else: the segments of every log, a snapshot of
//! the index and later index changes (deltas), and attachments. Nothing that a manifest names is overwritten.
//! A new checkpoint writes new files, then replaces the manifest in one step, and only then removes files
//! that are no longer named.
//!
//! Every byte has a checksum that is verified before use: damage gives an error that names the file, never
//! wrong data. Formats are described where they are written: [`Manifest`], the frames of deltas and snapshots
//! in `frame`, their records in `delta` and `snapshot`. Integers are little-endian.

mod attachment;
mod delta;
mod error;
mod frame;
mod frame_codec;
mod garbage;
mod index_log;
mod manifest;
mod marker;
mod moves;
mod name;
mod pins;
mod row_sets;
mod snapshot;
mod stored;
mod version;

pub(crate) use attachment::{AttachmentEntry, load_attachment, save_attachment, save_sketch};
pub(crate) use delta::DeltaReader;
pub(crate) use frame::FileEntry;
pub(crate) use frame_codec::{FRAME_HEADER_BYTES, FrameHeader, seal_frame};
pub(crate) use garbage::collect_garbage;
pub(crate) use index_log::IndexLog;
pub(crate) use manifest::{FORMAT_VERSION, GroupEntry, Manifest, TABLES_MAX, TableEntry};
pub(crate) use marker::{MARK, mark};
pub(crate) use moves::{Move, for_each_move};
pub use name::RESTORING;
pub(crate) use name::{MANIFEST, MANIFEST_PREPARED, MARKER, epoch_of, lists_moves};
pub(crate) use pins::Pins;
pub(crate) use row_sets::{load_row_sets, save_row_sets};
pub(crate) use snapshot::{SnapshotReader, SnapshotWriter};
pub(crate) use stored::{load_manifest, load_manifest_with_bytes, load_prepared, located};
pub(crate) use version::{VersionEntry, load_version, save_version};

/// A file of index changes, as a manifest lists it.
pub(crate) type DeltaFile = FileEntry;

#[cfg(test)]
mod tests;
