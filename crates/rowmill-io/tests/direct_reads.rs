//! Device reads reach the disk: the kernel's count of bytes read grows by the size of the reads, even when
//! the same blocks were just read or written. This test runs alone in its process, because that count is per
//! process.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rowmill_io::{BLOCK_BYTES, DirectoryVolume, IoChoice, Span, Volume};
use rowmill_testkit::disk_read_bytes;

const BLOCKS: u64 = 1024;

#[test]
fn every_read_reaches_the_disk() {
    for choice in [IoChoice::Auto, IoChoice::Pread] {
        let folder = tempfile::tempdir().unwrap();
        let volume = DirectoryVolume::open(folder.path(), choice).unwrap();
        let described = volume.describe();
        if disk_read_bytes().is_none() || !described.ends_with("O_DIRECT") || is_in_memory(folder.path()) {
            eprintln!(
                "skipped: {} is not on a disk whose reads the kernel counts ({described})",
                volume.location()
            );
            return;
        }
        let device = volume.device("device", true).unwrap();
        device.write(0, &vec![1; (BLOCKS as usize) * BLOCK_BYTES]).unwrap();
        device.sync().unwrap();
        let spans: Vec<Span> = (0..BLOCKS)
            .map(|i| Span { offset: i * 389 % BLOCKS * BLOCK_BYTES as u64, bytes: BLOCK_BYTES })
            .collect();
        for _ in 0..3 {
            let before = disk_read_bytes().unwrap();
            device.read(&spans, &mut |_, result| assert_eq!(result.unwrap()[0], 1));
            let grown = disk_read_bytes().unwrap() - before;
            assert_eq!(grown, BLOCKS * BLOCK_BYTES as u64, "{described}");
        }
    }
}

/// File systems without a block device (tmpfs, overlays on it) have device numbers with major 0.
fn is_in_memory(folder: &std::path::Path) -> bool {
    libc::major(fs::metadata(folder).unwrap().dev()) == 0
}
