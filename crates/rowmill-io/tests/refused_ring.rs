//! Containers commonly refuse `io_uring` by a system-call filter. With such a filter, the volume reports the
//! refusal and reads through `pread`. This test runs alone in its process, because support is probed once per
//! process.

use rowmill_io::{BLOCK_BYTES, DirectoryVolume, IoChoice, Span, Volume, io_bytes_per_thread};

/// Make every `io_uring_setup` of this thread and its children fail with EPERM; false if the kernel has no
/// system-call filters.
fn refuse_io_uring() -> bool {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        // The first word of the filter's input is the system call's number.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the call only sets a flag of this thread.
    let no_more_privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    // SAFETY: the filter and its steps are valid for the call, which copies them.
    let filtered =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) } == 0;
    no_more_privileges && filtered
}

#[test]
fn a_refused_ring_is_reported_and_pread_is_used() {
    if !refuse_io_uring() {
        eprintln!("skipped: this kernel accepts no system-call filter");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    let described = volume.describe();
    println!("{described}");
    assert!(described.starts_with("pread"), "{described}");
    if described.ends_with("O_DIRECT") {
        assert!(described.contains("io_uring is refused: Operation not permitted"), "{described}");
    }
    assert_eq!(io_bytes_per_thread(IoChoice::Auto), io_bytes_per_thread(IoChoice::Pread));
    let device = volume.device("device", true).unwrap();
    device.write(0, &vec![3; 300 * BLOCK_BYTES]).unwrap();
    let spans: Vec<Span> =
        (0..300).map(|i| Span { offset: i * 7 % 300 * BLOCK_BYTES as u64, bytes: BLOCK_BYTES }).collect();
    let mut delivered = 0;
    device.read(&spans, &mut |_, result| {
        assert_eq!(result.unwrap(), [3; BLOCK_BYTES]);
        delivered += 1;
    });
    assert_eq!(delivered, 300);
}
