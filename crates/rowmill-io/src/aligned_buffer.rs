//! Block-aligned memory, as `O_DIRECT` requires: the device transfers into it without an extra kernel copy.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt::{self, Debug, Formatter};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::BLOCK_BYTES;

/// Zeroed bytes that start on a block boundary, as `O_DIRECT` requires.
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

    /// Whether `bytes` is aligned well enough to pass to an `O_DIRECT` file.
    pub(crate) fn is_aligned(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
    }

    /// Pointer to the first byte, for memory that the kernel also writes: Rust must not borrow all of it.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn layout(bytes: usize) -> Layout {
        // An empty buffer still allocates one block, so allocation and release follow one rule.
        Layout::from_size_align(bytes.max(BLOCK_BYTES), BLOCK_BYTES).expect("a buffer fits the address space")
    }
}

// SAFETY: the buffer is the only owner of its memory; `&self` gives only shared access, `&mut self` unique
// access.
unsafe impl Send for AlignedBuffer {}
// SAFETY: `&self` gives only shared access; there is no interior mutability.
unsafe impl Sync for AlignedBuffer {}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this layout, and is released once.
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
    fn buffers_are_aligned_zeroed_and_of_the_given_length() {
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
