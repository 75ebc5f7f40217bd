//! A process that has read through its ring is forked, as data loaders do: the child must not touch the
//! rings of its parent, and both go on reading. Alone in its process, because it forks it.

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
    // SAFETY: the child only reads the device and leaves by `_exit`, running no destructor of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = (0..3).all(|_| reads_rightly(&*device));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!right)) }
    }
    assert!(child > 0);
    assert!((0..3).all(|_| reads_rightly(&*device)), "the parent reads wrongly");
    let mut status = 0;
    // SAFETY: waits for the child made above and writes its status to the pointer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child reads wrongly: {status}");
}
