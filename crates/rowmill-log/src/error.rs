//! Errors of a log, and the kinds of damage that a block can have.

use std::sync::Arc;

use rowmill_io::DeviceError;

/// The bytes of one row, or the error that prevented reading them.
pub type RowResult<'a> = Result<&'a [u8], LogError>;

/// An error of the log of one group.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// No row has this number any more. Look the row up again. If the index still gives this number, the
    /// index is damaged.
    #[error("group {group} has no row with number {number} any more: look the row up again")]
    Moved {
        /// Group of the log.
        group: u32,
        /// The row number asked for.
        number: u32,
    },
    /// The device returned other bytes than were written.
    #[error("group {group}, segment {sequence} in place {place}, {part} is corrupt: {fault}")]
    Corrupt {
        /// Group of the log.
        group: u32,
        /// Place of the segment in the file.
        place: u32,
        /// Sequence number of the segment.
        sequence: u64,
        /// The damaged part.
        part: SegmentPart,
        /// What is wrong with it.
        fault: Damage,
    },
    /// A read failed. Other rows may still be readable.
    #[error("reading the log of group {group} failed: {cause}")]
    Read {
        /// Group of the log.
        group: u32,
        /// The error of the device.
        cause: Arc<DeviceError>,
    },
    /// The log refuses writes until the store is reopened at its last checkpoint. Rows in healthy blocks can
    /// still be read.
    #[error(
        "the log of group {group} refuses writes after a failure; reopen the store at its last checkpoint: {cause}"
    )]
    Poisoned {
        /// Group of the log.
        group: u32,
        /// The first failure.
        cause: Arc<PoisonCause>,
    },
    /// The operating system refused to start the writer thread.
    #[error("the system refused to start thread {name}: {source}")]
    Thread {
        /// Name of the thread.
        name: String,
        /// The reason of the operating system.
        source: Arc<std::io::Error>,
    },
    /// No free place is left for a new segment, or fewer than the next checkpoint needs.
    #[error(
        "the log of group {group} has used {used} of its {limit} row numbers: delete rows and make a checkpoint"
    )]
    Full {
        /// Group of the log.
        group: u32,
        /// Row numbers in places that cannot be written now.
        used: u64,
        /// All row numbers of the log.
        limit: u64,
    },
    /// The log was opened for reading only.
    #[error("the log of group {group} was opened read-only")]
    ReadOnly {
        /// Group of the log.
        group: u32,
    },
    /// The checkpoint's description of the log is impossible.
    #[error("the checkpoint describes the log of group {group} wrongly: {reason}")]
    BadState {
        /// Group of the log.
        group: u32,
        /// Which value is impossible.
        reason: String,
    },
}

/// Why a log refuses writes.
#[derive(Debug, thiserror::Error)]
pub enum PoisonCause {
    /// A write or sync failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The writer thread panicked.
    #[error("{0}")]
    Panic(String),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// A part of a segment, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentPart {
    /// A data block, counted from the beginning of the segment.
    Block(u32),
    /// The checksums and keys at the end.
    Trailer,
}

impl std::fmt::Display for SegmentPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Block(block) => write!(f, "block {block}"),
            Self::Trailer => write!(f, "trailer"),
        }
    }
}

/// What is wrong with a part of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The content or the logical address of the block differ from what was written.
    #[error(
        "its checksum is {found:08x}, expected {expected:08x}: the block is damaged, outdated or belongs elsewhere"
    )]
    Checksum {
        /// Checksum when written.
        expected: u32,
        /// Checksum of what was read.
        found: u32,
    },
    /// The trailer belongs to another segment.
    #[error("its {field} is {found}, expected {expected}: it is outdated or belongs elsewhere")]
    Field {
        /// Which field of the trailer.
        field: &'static str,
        /// Its value according to the checkpoint.
        expected: u64,
        /// Its value on the device.
        found: u64,
    },
    /// The magic number is missing.
    #[error("the magic number of a trailer is missing")]
    NotATrailer,
    /// The segment has another format version.
    #[error("the segment has format version {found}, this build reads version {expected}")]
    Version {
        /// The version of this build.
        expected: u32,
        /// The version on the device.
        found: u32,
    },
}
