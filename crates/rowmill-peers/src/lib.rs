//! Other storage engines behind one trait, so that benchmarks run the same work on them and on the store.
//!
//! | engine | feature | library |
//! |---|---|---|
//! | `RocksDB` | `rocksdb` | librocksdb |
//! | LMDB | `lmdb` | liblmdb |
//! | `WiredTiger` | `wiredtiger` | libwiredtiger |
//! | FASTER | `faster` | none: compiled from source, with libaio, libtbb and libuuid |
//!
//! `tools/peers.sh` lists the engines that a machine can build. No shipped build contains this crate.

mod error;
#[cfg(feature = "faster")]
mod faster;
#[cfg(feature = "lmdb")]
mod lmdb;
mod memory_limit;
mod read_ahead;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod serve_rows;
#[cfg(feature = "wiredtiger")]
mod wiredtiger;

use std::path::PathBuf;

pub use error::PeerError;
pub use memory_limit::MemoryLimit;
pub use read_ahead::ReadAhead;
pub use serve_rows::{Exchange, serve_rows};

/// Engines to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// A log-structured merge tree.
    RocksDb,
    /// A B-tree in mapped memory.
    Lmdb,
    /// A B-tree with a cache of its own.
    WiredTiger,
    /// A hash index over a log whose tail is updated in place.
    Faster,
}

impl PeerKind {
    /// All engines, built or not.
    pub const ALL: [Self; 4] = [Self::RocksDb, Self::Lmdb, Self::WiredTiger, Self::Faster];

    /// # Errors
    /// The engine does not exist.
    pub fn parse(name: &str) -> Result<Self, PeerError> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| PeerError::Unknown(name.to_owned()))
    }

    /// Name of the engine and of its feature.
    pub fn name(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::Lmdb => "lmdb",
            Self::WiredTiger => "wiredtiger",
            Self::Faster => "faster",
        }
    }

    /// Whether this build contains the engine.
    pub fn is_built(self) -> bool {
        match self {
            Self::RocksDb => cfg!(feature = "rocksdb"),
            Self::Lmdb => cfg!(feature = "lmdb"),
            Self::WiredTiger => cfg!(feature = "wiredtiger"),
            Self::Faster => cfg!(feature = "faster"),
        }
    }
}

/// Folder, sizes and memory of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of its files. Existing files are opened again.
    pub folder: PathBuf,
    /// Most distinct rows.
    pub rows: u64,
    /// Bytes per row, a multiple of 4.
    pub row_bytes: usize,
    /// Memory in bytes for everything that the engine keeps.
    pub memory: u64,
    /// True: rows are changed as often as they are read. False: rows are only read after they were stored.
    pub changes: bool,
}

/// Rows of one size by key. A row is floats: weights, then optimizer state.
///
/// All methods may be called by several threads at once. Two concurrent changes of one row leave one of the
/// two results or both changes, depending on the engine.
///
/// Rows are durable after the engine is dropped; until then, no change is durable.
pub trait Engine: Send + Sync {
    /// Bytes per row.
    fn row_bytes(&self) -> usize;

    /// Copy the rows of `keys` to `rows`, in order.
    ///
    /// # Errors
    /// A row is missing, or the engine failed.
    fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), PeerError>;

    /// Store or replace the rows of `keys`, which are distinct and ascend.
    ///
    /// # Errors
    /// The engine failed.
    fn put(&self, keys: &[u64], rows: &[f32]) -> Result<(), PeerError>;

    /// Change the rows of `keys`, which are distinct and ascend, by `change(position, row)`. Calls come in
    /// any order. They may get a copy of the row, and may be repeated.
    ///
    /// # Errors
    /// A row is missing, or the engine failed.
    fn rmw(&self, keys: &[u64], change: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), PeerError> {
        let row_floats = self.row_bytes() / size_of::<f32>();
        let mut rows = vec![0.0; keys.len() * row_floats];
        self.get(keys, &mut rows)?;
        rows.chunks_mut(row_floats).enumerate().for_each(|(position, row)| change(position, row));
        self.put(keys, &rows)
    }

    /// [`Engine::put`] for keys above all existing keys, which some engines can do faster.
    ///
    /// # Errors
    /// The engine failed.
    fn append(&self, keys: &[u64], rows: &[f32]) -> Result<(), PeerError> {
        self.put(keys, rows)
    }

    /// Bring rows into the engine's memory, for a later call.
    ///
    /// # Errors
    /// A row is missing, or the engine failed.
    fn read_ahead(&self, keys: &[u64]) -> Result<(), PeerError> {
        self.get(keys, &mut vec![0.0; keys.len() * self.row_bytes() / size_of::<f32>()])
    }

    /// Wait until background work is finished.
    ///
    /// # Errors
    /// The engine failed, or background work took longer than a minute.
    fn settle(&self) -> Result<(), PeerError>;
}

/// Open an engine with the rows in its folder, if any.
///
/// # Errors
/// This build does not contain the engine, the options are not valid, or the engine failed.
pub fn open(kind: PeerKind, options: &Options) -> Result<Box<dyn Engine>, PeerError> {
    std::fs::create_dir_all(&options.folder)?;
    match kind {
        #[cfg(feature = "rocksdb")]
        PeerKind::RocksDb => Ok(Box::new(rocksdb::RocksDb::open(options)?)),
        #[cfg(feature = "lmdb")]
        PeerKind::Lmdb => Ok(Box::new(lmdb::Lmdb::open(options)?)),
        #[cfg(feature = "wiredtiger")]
        PeerKind::WiredTiger => Ok(Box::new(wiredtiger::WiredTiger::open(options)?)),
        #[cfg(feature = "faster")]
        PeerKind::Faster => Ok(Box::new(faster::Faster::open(options)?)),
        #[cfg(not(all(feature = "rocksdb", feature = "lmdb", feature = "wiredtiger", feature = "faster")))]
        missing => Err(PeerError::NotBuilt(missing.name())),
    }
}
