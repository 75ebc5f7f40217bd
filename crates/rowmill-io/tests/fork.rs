//! Forks a process that has open rings, locks and files, as data loaders do. The child must not use its
//! parent's rings, hold its folder lock or write its buffered data. This is a separate test program because
//! it forks the process.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use rowmill_io::{BLOCK_BYTES, Device, DirectoryVolume, IoChoice, Span, Volume};

const BLOCKS: u64 = 600;

fn reads_rightly(device: &dyn Device) -> bool {
    let spans: Vec<Span> = (0..BLOCKS)
        .map(|i| Span { offset: i * 7 % BLOCKS * BLOCK_BYTES as u64, bytes: BLOCK_BYTES })
        .collect();
    let mut right = 0;
    device.read(&spans, &mut |position, result| {
        let block = spans[position].offset / BLOCK_BYTES as u64;
        right += usize::from(result.is_ok_and(|content| content[..8] == block.to_le_bytes()));
    });
    right == spans.len()
}

#[test]
fn parent_and_child_both_read_after_a_fork() {
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    let device = volume.device("device", true).unwrap();
    let mut content = vec![0; BLOCKS as usize * BLOCK_BYTES];
    for (block, bytes) in content.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        bytes[..8].copy_from_slice(&(block as u64).to_le_bytes());
    }
    device.write(0, &content).unwrap();
    assert!(reads_rightly(&*device));
    // SAFETY: the child only reads the device and leaves by `_exit`, so it runs no destructor of the parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = (0..3).all(|_| reads_rightly(&*device));
        // SAFETY: ends the child process.
        unsafe { libc::_exit(i32::from(!right)) }
    }
    assert!(child > 0);
    assert!((0..3).all(|_| reads_rightly(&*device)), "the parent reads wrongly");
    let mut status = 0;
    // SAFETY: waits for the child made above and writes its status to the pointer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child reads wrongly: {status}");
}

#[test]
fn a_forked_child_does_not_hold_the_lock_of_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    let lock = volume.lock().unwrap();
    let (mut done, mut end_child) = std::io::pipe().unwrap();
    let (mut started, mut start) = std::io::pipe().unwrap();
    // SAFETY: the child uses only pipes and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(end_child);
        let _ = start.write_all(&[1]);
        let _ = done.read(&mut [0]);
        // SAFETY: ends the child process.
        unsafe { libc::_exit(0) }
    }
    assert!(child > 0);
    started.read_exact(&mut [0]).unwrap();
    // The child closes its copy of the lock file without unlocking it: the parent holds the lock.
    assert!(volume.lock().is_err(), "the child has unlocked the folder of its parent");
    drop(lock);
    let relocked = volume.lock();
    // A byte, because children of other tests hold copies of the pipe, which would keep it open.
    end_child.write_all(&[1]).unwrap();
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    relocked.expect("the child still holds the lock");
}

#[test]
fn a_child_with_an_open_copy_of_the_lock_file_does_not_hold_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    let lock = volume.lock().unwrap();
    let (done, mut end_child) = std::io::pipe().unwrap();
    // A child without fork handlers keeps its copy of the file open until it ends.
    // SAFETY: the bare system call runs no fork handlers; the child makes two system calls and leaves by
    // `_exit`.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, i64::from(libc::SIGCHLD), 0_i64, 0_i64, 0_i64, 0_i64) };
    if child == 0 {
        // SAFETY: closes and reads the child's ends of the pipe, then ends the child.
        unsafe {
            libc::close(end_child.as_raw_fd());
            libc::read(done.as_raw_fd(), [0_u8].as_mut_ptr().cast(), 1);
            libc::_exit(0)
        }
    }
    assert!(child > 0);
    assert!(volume.lock().is_err(), "the lock is held while its holder lives");
    drop(lock);
    let relocked = volume.lock();
    // A byte, because children of other tests hold copies of the pipe, which would keep it open.
    end_child.write_all(&[1]).unwrap();
    // SAFETY: waits for the child made above.
    assert_eq!(i64::from(unsafe { libc::waitpid(child as i32, std::ptr::null_mut(), 0) }), child);
    relocked.expect("the child still holds the lock");
}

#[test]
fn a_forked_child_does_not_write_what_its_parent_has_buffered() {
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    let mut writer = volume.create("file").unwrap();
    writer.write_all(b"once").unwrap();
    // SAFETY: the child drops the writer and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(writer);
        // SAFETY: ends the child process.
        unsafe { libc::_exit(0) }
    }
    assert!(child > 0);
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    drop(writer);
    let mut content = Vec::new();
    volume.open("file").unwrap().read_to_end(&mut content).unwrap();
    assert_eq!(content, b"once");
}
