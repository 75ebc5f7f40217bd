//! What can go wrong with an engine.

use std::io;

/// Failures of engines.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// No engine has this name.
    #[error("peer {0:?}: use rocksdb, lmdb, wiredtiger or faster")]
    Unknown(String),
    /// A feature is off.
    #[error("this build has no {0}: add --features {0} (tools/peers.sh says what it needs)")]
    NotBuilt(&'static str),
    /// An option is not possible, or a request is not one.
    #[error("{0}")]
    Invalid(String),
    /// Some of the rows asked for were never put.
    #[error("{engine}: {count} of the rows asked for are missing")]
    Missing {
        /// Its name.
        engine: &'static str,
        /// How many.
        count: usize,
    },
    /// The engine's own words.
    #[error("{engine}: {message}")]
    Engine {
        /// Its name.
        engine: &'static str,
        /// What it said.
        message: String,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// An error if rows are missing.
#[cfg(any(feature = "rocksdb", feature = "lmdb", feature = "wiredtiger", feature = "faster"))]
pub(crate) fn none_missing(engine: &'static str, count: usize) -> Result<(), PeerError> {
    if count == 0 { Ok(()) } else { Err(PeerError::Missing { engine, count }) }
}
