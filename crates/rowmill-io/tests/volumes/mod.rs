//! The volumes that tests run over.

use std::path::Path;

use rowmill_io::{BLOCK_BYTES, DirectoryVolume, IoChoice, MemoryVolume, Span, Volume};

/// `count` blocks from `first`.
pub(crate) fn span(first: u64, count: usize) -> Span {
    Span { offset: first * BLOCK_BYTES as u64, bytes: count * BLOCK_BYTES }
}

/// Run a test over a new volume of each kind.
pub(crate) fn each_volume(test: impl Fn(&dyn Volume)) {
    for choice in [IoChoice::Auto, IoChoice::Pread] {
        let folder = tempfile::tempdir().unwrap();
        test(&DirectoryVolume::open(folder.path(), choice).unwrap());
        if Path::new("/dev/shm").is_dir() {
            let folder = tempfile::tempdir_in("/dev/shm").unwrap();
            test(&DirectoryVolume::open(folder.path(), choice).unwrap());
        }
    }
    test(&MemoryVolume::new());
    test(&MemoryVolume::crashable());
}
