//! Behaviour of a real directory: locks of other processes, refused names and files, a full disk, and a
//! truncated file.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rowmill_io::{BLOCK_BYTES, DeviceError, DirectoryVolume, IoChoice, Span, Volume, io_bytes_per_thread};

const LOCK_FOLDER: &str = "ROWMILL_TEST_LOCK_FOLDER";

#[test]
fn the_pid_of_an_earlier_holder_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("LOCK");
    std::fs::write(&note, "123456789012345\n").unwrap();
    let inode = std::fs::metadata(&note).unwrap().ino();
    let _lock = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap().lock().unwrap();
    assert_eq!(std::fs::read_to_string(&note).unwrap(), format!("{}\n", std::process::id()));
    assert_eq!(
        std::fs::metadata(&note).unwrap().ino(),
        inode,
        "the lock file was replaced, but a waiting process still has the old one open"
    );
}

/// Starts itself again as a second process, which holds the lock until its input ends.
#[test]
fn the_lock_of_another_process_is_reported_with_its_pid_until_it_ends() {
    if let Ok(folder) = std::env::var(LOCK_FOLDER) {
        let volume = DirectoryVolume::open(Path::new(&folder), IoChoice::Auto).unwrap();
        let _held = volume.lock().unwrap();
        println!("held");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "the_lock_of_another_process_is_reported_with_its_pid_until_it_ends",
            "--nocapture",
        ])
        .env(LOCK_FOLDER, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("held")));
    match volume.lock() {
        Err(DeviceError::Locked { holder, name }) => {
            assert_eq!((holder, name), (other.id(), volume.location()));
        }
        result => panic!("{result:?}"),
    }
    other.kill().unwrap();
    other.wait().unwrap();
    volume.lock().unwrap();
}

#[test]
fn only_plain_file_names_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    for name in ["", ".", "..", "a/b", "/etc/passwd", "LOCK"] {
        assert!(matches!(volume.create(name), Err(DeviceError::Io { .. })), "{name:?}");
        assert!(matches!(volume.device(name, true), Err(DeviceError::Io { .. })), "{name:?}");
        assert!(matches!(
            volume.rename("x", name),
            Err(DeviceError::Io { .. } | DeviceError::Missing { .. })
        ));
    }
    std::fs::create_dir(folder.path().join("nested")).unwrap();
    assert!(volume.list().unwrap().is_empty(), "folders are not part of the content");
}

#[test]
fn a_missing_directory_is_created_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b");
    assert!(matches!(DirectoryVolume::open(&path, IoChoice::Auto), Err(DeviceError::Missing { .. })));
    DirectoryVolume::create(&path, IoChoice::Auto).unwrap().create("file").unwrap();
    assert_eq!(DirectoryVolume::create(&path, IoChoice::Auto).unwrap().list().unwrap(), ["file"]);
    std::fs::write(folder.path().join("file"), "").unwrap();
    assert!(DirectoryVolume::open(&folder.path().join("file"), IoChoice::Auto).is_err());
}

#[test]
fn a_full_disk_has_its_own_error() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.path().join("full")).unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    match volume.device("full", true).unwrap().write(0, &[0; BLOCK_BYTES]) {
        Err(DeviceError::Full { bytes, .. }) => assert_eq!(bytes, BLOCK_BYTES),
        other => panic!("{other:?}"),
    }
    let mut file = volume.create("full").unwrap();
    file.write_all(b"content").unwrap();
    assert!(matches!(file.sync(), Err(DeviceError::Full { .. })));
}

#[test]
fn a_file_truncated_inside_a_block_fails_only_there() {
    for choice in [IoChoice::Auto, IoChoice::Pread] {
        let folder = tempfile::tempdir().unwrap();
        let volume = DirectoryVolume::open(folder.path(), choice).unwrap();
        let device = volume.device("device", true).unwrap();
        device.write(0, &vec![1; 8 * BLOCK_BYTES]).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(folder.path().join("device")).unwrap();
        file.set_len(5 * BLOCK_BYTES as u64 + 100).unwrap();
        let spans: Vec<Span> =
            (0..8).map(|block| Span { offset: block * BLOCK_BYTES as u64, bytes: BLOCK_BYTES }).collect();
        let mut good = [None; 8];
        device.read(&spans, &mut |position, result| {
            if let Err(DeviceError::Io { source, .. }) = &result {
                assert_eq!(source.kind(), std::io::ErrorKind::UnexpectedEof);
            }
            good[position] = Some(result.is_ok());
        });
        assert_eq!(good, [true, true, true, true, true, false, false, false].map(Some));
    }
}

#[test]
fn a_large_discard_frees_its_span_and_nothing_else() {
    use std::os::unix::fs::MetadataExt;
    const MIB: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    let device = volume.device("device", true).unwrap();
    device.write(0, &vec![7; 16 * MIB]).unwrap();
    let allocated = || std::fs::metadata(folder.path().join("device")).unwrap().blocks() * 512;
    let before = allocated();
    device.discard(Span { offset: 2 * MIB as u64, bytes: 9 * MIB + BLOCK_BYTES }).unwrap();
    assert!(allocated() + 9 * MIB as u64 <= before, "{} of {before} bytes", allocated());
    let content = std::fs::read(folder.path().join("device")).unwrap();
    let (freed, kept) = content[2 * MIB..].split_at(9 * MIB + BLOCK_BYTES);
    assert!(content.len() == 16 * MIB && freed.iter().all(|byte| *byte == 0));
    assert!(content[..2 * MIB].iter().chain(kept).all(|byte| *byte == 7));
}

#[test]
fn the_read_method_is_reported_with_reason_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    let pread = DirectoryVolume::open(folder.path(), IoChoice::Pread).unwrap().describe();
    assert!(pread.starts_with("pread"), "{pread}");
    let auto = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap().describe();
    println!("{auto}");
    assert!(auto.starts_with("io_uring") || auto.contains("refuse"), "{auto}");
    let (auto, pread) = (io_bytes_per_thread(IoChoice::Auto), io_bytes_per_thread(IoChoice::Pread));
    assert!(pread <= auto && auto <= 2 << 20, "{pread} {auto}");
}

#[test]
fn more_threads_than_rings_can_read_and_ended_threads_release_theirs() {
    const THREADS: usize = 80;
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    let device = volume.device("device", true).unwrap();
    device.write(0, &vec![5; 64 * BLOCK_BYTES]).unwrap();
    let spans: Vec<Span> =
        (0..32).map(|i| Span { offset: 2 * i * BLOCK_BYTES as u64, bytes: BLOCK_BYTES }).collect();
    for _ in 0..2 {
        let all_read = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut delivered = 0;
                    device.read(&spans, &mut |_, result| {
                        assert_eq!(result.unwrap()[7], 5);
                        delivered += 1;
                    });
                    assert_eq!(delivered, spans.len());
                    all_read.wait();
                });
            }
        });
    }
}
