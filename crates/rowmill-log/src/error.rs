//! What a log could not do, and what is wrong with a block.

use std::sync::Arc;

use rowmill_io::DeviceError;

/// The bytes of one row, or why there are none.
pub type RowResult<'a> = Result<&'a [u8], LogError>;

/// What the log of a group could not do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// The row number names no row any more. Look the row up again; if the index still gives this
    /// number, the index is damaged.
    #[error("row number {number} of group {group} names no row: look it up again")]
    Moved {
        /// Group of the log.
        group: u32,
        /// The row number asked for.
        number: u32,
    },
    /// What the device returned is not what was written there.
    #[error("group {group}, segment {sequence} in place {place}, {part}: {fault}")]
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
    #[error("reading the log of group {group}: {cause}")]
    Read {
        /// Group of the log.
        group: u32,
        /// The device's own error.
        cause: Arc<DeviceError>,
    },
    /// Nothing can be written until the store is opened again at its last checkpoint. Reads of healthy rows go on.
    #[error("the log of group {group} takes no more rows, reopen the store at its last checkpoint: {cause}")]
    Poisoned {
        /// Group of the log.
        group: u32,
        /// The first failure.
        cause: Arc<PoisonCause>,
    },
    /// The system refused to start the writer thread.
    #[error("starting thread {name}: {source}")]
    Thread {
        /// Name of the thread.
        name: String,
        /// The system's reason.
        source: Arc<std::io::Error>,
    },
    /// Too few row numbers are left.
    #[error("the log of group {group} has used {used} of {limit} row numbers")]
    Full {
        /// Group of the log.
        group: u32,
        /// Row numbers in places that cannot be written now.
        used: u64,
        /// All row numbers of the log.
        limit: u64,
    },
    /// The log was opened for reading.
    #[error("the log of group {group} is open for reading only")]
    ReadOnly {
        /// Group of the log.
        group: u32,
    },
    /// The checkpoint's description of the log cannot be true.
    #[error("the checkpoint misdescribes the log of group {group}: {reason}")]
    BadState {
        /// Group of the log.
        group: u32,
        /// What cannot be.
        reason: String,
    },
}

/// Why a log takes no more rows.
#[derive(Debug, thiserror::Error)]
pub enum PoisonCause {
    /// A write or sync failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The writer panicked.
    #[error("{0}")]
    Panic(String),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// A part of a segment.
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
    /// Content or logical address differ from what was written.
    #[error("checksum {found:08x} instead of {expected:08x}: damaged, stale or from another place")]
    Checksum {
        /// Checksum when written.
        expected: u32,
        /// Checksum of what was read.
        found: u32,
    },
    /// The trailer belongs to another segment.
    #[error("{field} {found} instead of {expected}: stale or from another place")]
    Field {
        /// Which field of the trailer.
        field: &'static str,
        /// Its value by the checkpoint.
        expected: u64,
        /// Its value on the device.
        found: u64,
    },
    /// The magic number is missing.
    #[error("no trailer is there")]
    NotATrailer,
    /// Written by another version of the format.
    #[error("segment format {found}, this build reads {expected}")]
    Version {
        /// The version of this build.
        expected: u32,
        /// The version on the device.
        found: u32,
    },
}
