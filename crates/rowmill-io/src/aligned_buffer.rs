//! Memory that the kernel reads and writes without a copy of its own.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt::{self, Debug, Formatter};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::BLOCK_BYTES;

/// Zeroed bytes whose first one lies on a block boundary, as `O_DIRECT` wants them.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    bytes: usize,
}

impl AlignedBuffer {
    /// A buffer of `bytes` zeros.
    pub fn new(bytes: usize) -> Self {
        let layout = Self::layout(bytes);
        // SAFETY: the layout has a size of at least one block, so it is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, bytes }
    }

    /// Whether `bytes` could be handed to an `O_DIRECT` file as it is.
    pub(crate) fn is_aligned(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
    }

    /// The first byte, for those who share the memory with the kernel and may not borrow all of it.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn layout(bytes: usize) -> Layout {
        // An empty buffer still owns a block: one rule for allocation and release.
        Layout::from_size_align(bytes.max(BLOCK_BYTES), BLOCK_BYTES).expect("a buffer fits the address space")
    }
}

// SAFETY: the buffer owns its memory alone; `&` gives only shared and `&mut` only unique access.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for AlignedBuffer {}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this very layout, and is released once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes)) }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes from `start` are allocated, initialised, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Debug for AlignedBuffer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_of_the_asked_length() {
        for bytes in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 7] {
            let mut buffer = AlignedBuffer::new(bytes);
            assert!(AlignedBuffer::is_aligned(&buffer));
            assert_eq!(buffer.len(), bytes);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
    }
}
