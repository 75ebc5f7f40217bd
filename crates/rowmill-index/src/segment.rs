//! Address space for arrays that are smaller than a huge page, so that they lie in huge pages together.
//!
//! The kernel uses a huge page where 2 MiB of one mapping begin at a multiple of 2 MiB. A table of a million rows has an
//! index of about 1 MiB in each shard, which has no such place as a mapping of its own. Arrays of this size are parts of
//! a larger mapping, the segment, one after the other. Each part is unmapped by itself, and a segment gives no address
//! twice.

use std::io;
use std::ptr::NonNull;
use std::sync::Mutex;

use super::mmap_array::{map_zeroed, unmap};

/// Address space that is mapped at a time.
const SEGMENT_BYTES: usize = 64 << 20;

/// The part of the newest segment that no array has.
static REST: Mutex<Rest> = Mutex::new(Rest { start: NonNull::dangling(), bytes: 0 });

struct Rest {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the rest of a segment belongs to no thread.
unsafe impl Send for Rest {}

/// Take zeros of a segment. The caller unmaps them.
///
/// At most one huge page is in memory to which no array lays claim yet. Never waits: while another thread takes a part,
/// and always in a process that was forked at such a moment, the zeros are a mapping of their own.
///
/// # Errors
/// The operating system's error when address space is refused.
///
/// # Panics
/// When `bytes` are not whole pages, or more than a segment has.
pub(super) fn take(bytes: usize) -> io::Result<NonNull<u8>> {
    assert!(bytes.is_multiple_of(super::mmap_array::PAGE_BYTES) && bytes <= SEGMENT_BYTES);
    let Ok(mut rest) = REST.try_lock() else { return map_zeroed(bytes, false) };
    if rest.bytes < bytes {
        let segment = Rest { start: map_zeroed(SEGMENT_BYTES, true)?, bytes: SEGMENT_BYTES };
        let old = std::mem::replace(&mut *rest, segment);
        if old.bytes > 0 {
            unmap(old.start.as_ptr(), old.bytes);
        }
    }
    let taken = rest.start;
    // SAFETY: `bytes` are within the rest, so the sum is at most one past the end of the segment.
    rest.start = unsafe { taken.add(bytes) };
    rest.bytes -= bytes;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_zeros_and_do_not_overlap() {
        const BYTES: usize = 20 << 20;
        // A segment has room for three parts.
        let parts: Vec<_> = (1..=8_u8)
            .map(|number| {
                let part = take(BYTES).unwrap();
                // SAFETY: the part is mapped, and nothing else refers to it.
                let bytes = unsafe { std::slice::from_raw_parts_mut(part.as_ptr(), BYTES) };
                for at in [0, BYTES / 2, BYTES - 1] {
                    assert_eq!(bytes[at], 0);
                    bytes[at] = number;
                }
                (number, bytes)
            })
            .collect();
        for (number, bytes) in parts {
            assert_eq!([bytes[0], bytes[BYTES / 2], bytes[BYTES - 1]], [number; 3]);
            unmap(bytes.as_mut_ptr(), BYTES);
        }
    }

    /// A process that was forked while another thread held the lock must not wait for it.
    #[test]
    fn taking_does_not_wait_for_a_held_lock() {
        let held = REST.lock().unwrap();
        let apart = take(1 << 20).unwrap();
        drop(held);
        unmap(apart.as_ptr(), 1 << 20);
    }
}
