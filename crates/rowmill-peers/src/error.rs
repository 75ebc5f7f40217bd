//! Errors of engines.

use std::io;

/// Failures of engines.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The engine does not exist.
    #[error("peer {0:?}: use rocksdb, lmdb, wiredtiger or faster")]
    Unknown(String),
    /// The engine's feature is off.
    #[error("this build has no {0}: add --features {0} (tools/peers.sh lists its requirements)")]
    NotBuilt(&'static str),
    /// An option or request is not valid.
    #[error("{0}")]
    Invalid(String),
    /// Some of the requested rows were never put.
    #[error("{engine}: {count} of the requested rows are missing")]
    Missing {
        /// Name of the engine.
        engine: &'static str,
        /// Number of missing rows.
        count: usize,
    },
    /// The engine failed.
    #[error("{engine}: {message}")]
    Engine {
        /// Name of the engine.
        engine: &'static str,
        /// Its message.
        message: String,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Return an error if rows are missing.
#[cfg(any(feature = "rocksdb", feature = "lmdb", feature = "wiredtiger", feature = "faster"))]
pub(crate) fn none_missing(engine: &'static str, count: usize) -> Result<(), PeerError> {
    if count == 0 { Ok(()) } else { Err(PeerError::Missing { engine, count }) }
}
