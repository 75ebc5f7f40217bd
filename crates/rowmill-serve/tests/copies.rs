//! How many bytes of a large request are copied in user space: none.
//!
//! This program defines `memcpy` and `memmove`, which the standard library and the compiler call for every copy of
//! unknown or large size, and counts the large ones. The kernel's own copies over TCP are not counted.

mod common;

#[cfg(target_arch = "x86_64")]
mod counting {
    use std::arch::asm;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Shorter copies are structure: headers, tables, small tensors.
    const LARGE_BYTES: usize = 4096;

    static COPIED: AtomicUsize = AtomicUsize::new(0);

    /// Bytes of all large copies since the program began.
    pub(crate) fn copied() -> usize {
        COPIED.load(Relaxed)
    }

    /// # Safety
    /// As C's `memcpy`.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: the caller's duty is that of the instruction.
        unsafe { copy_up(target, source, bytes) };
        target
    }

    /// # Safety
    /// As C's `memmove`.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
        count(bytes);
        if target.addr().wrapping_sub(source.addr()) >= bytes {
            // SAFETY: as above; copying upwards reads no byte that it has written.
            unsafe { copy_up(target, source, bytes) };
        } else {
            // SAFETY: both last bytes exist, as `bytes` is not 0 here; the flag is set back.
            unsafe {
                asm!(
                    "std", "rep movsb", "cld",
                    inout("rcx") bytes => _,
                    inout("rdi") target.add(bytes - 1) => _,
                    inout("rsi") source.add(bytes - 1) => _,
                    options(nostack),
                );
            }
        }
        target
    }

    fn count(bytes: usize) {
        if bytes > LARGE_BYTES {
            COPIED.fetch_add(bytes, Relaxed);
        }
    }

    /// # Safety
    /// As C's `memcpy`, and ranges may overlap where `target` lies below `source`.
    unsafe fn copy_up(target: *mut u8, source: *const u8, bytes: usize) {
        // SAFETY: the caller's duty.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") bytes => _,
                inout("rdi") target => _,
                inout("rsi") source => _,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn eight_mebibytes_travel_without_a_copy_in_user_space() {
    use common::arena;
    use common::dense::*;
    use rowmill_serve::{DType, Tensor, TensorName};

    const BYTES: usize = 8 << 20;
    let before = counting::copied();
    let copy = std::hint::black_box(vec![1_u8; BYTES]).clone();
    assert!(counting::copied() - before >= BYTES, "a copy of {} bytes is counted", copy.len());

    let folder = tempfile::tempdir().unwrap();
    for address in addresses(folder.path()) {
        let dense = Dense::start(&address, arena(), 4, |incoming: rowmill_serve::Incoming| {
            let sum: u64 = incoming.request.tensors[0].data.iter().map(|&byte| u64::from(byte)).sum();
            assert_eq!(sum, 7 * BYTES as u64);
            incoming.replier.reply(incoming.request.tensors);
        });
        let mine = arena();
        let client = dense.client(&mine);
        let before = counting::copied();
        for _ in 0..3 {
            let mut lease = mine.lease(BYTES).unwrap();
            lease.fill(7);
            let tensor = Tensor::new(TensorName::Number(0), DType::UInt8, &[BYTES as u64], lease.share());
            let reply =
                dense.server.handle().block_on(client.call(vec![tensor], [0; 16], by(GENEROUS))).unwrap();
            assert_eq!(reply.tensors[0].data.len(), BYTES);
        }
        assert_eq!(counting::copied() - before, 0, "bytes copied over {address}");
    }
}
