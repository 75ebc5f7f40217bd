//! The kinds of volumes that tests run over.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rowmill_io::{DirectoryVolume, IoChoice, MemoryVolume, Volume};
use rowmill_testkit::{FaultyVolume, ThrottleLimits, ThrottledVolume};

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
    test(&FaultyVolume::over_memory(MemoryVolume::crashable(), 1));
    let folder = tempfile::tempdir().unwrap();
    let directory = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    test(&FaultyVolume::new(Arc::new(directory), 1));
    let limits = ThrottleLimits {
        reads_per_s: Some(10_000_000),
        bytes_per_s: Some(100 << 30),
        read_latency: Duration::from_micros(1),
    };
    test(&ThrottledVolume::new(Arc::new(MemoryVolume::new()), limits));
}
