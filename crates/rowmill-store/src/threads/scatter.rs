//! Writes disjoint elements of one slice from several threads.

use std::marker::PhantomData;

/// A slice that several threads write, each element by at most one thread.
pub(crate) struct Scatter<'a, T> {
    base: *mut T,
    len: usize,
    marker: PhantomData<&'a mut [T]>,
}

// SAFETY: at most one thread writes each element (the contract of the unsafe methods), and the element types
// (floats and row addresses) may be written by any thread.
unsafe impl<T: Copy> Sync for Scatter<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Send for Scatter<'_, T> {}

impl<'a, T> Scatter<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { base: slice.as_mut_ptr(), len: slice.len(), marker: PhantomData }
    }

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// The elements must lie inside the slice, and no other thread may access them while the result lives.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        debug_assert!(start + len <= self.len);
        // SAFETY: the caller guarantees that the range is in bounds and exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }

    /// Write one element.
    ///
    /// # Safety
    /// The element must lie inside the slice, and no other thread may access it at the same time.
    #[inline]
    pub(crate) unsafe fn set(&self, index: usize, value: T) {
        debug_assert!(index < self.len);
        // SAFETY: as in `slice`; the old value is plain data and needs no drop.
        unsafe { self.base.add(index).write(value) }
    }
}
