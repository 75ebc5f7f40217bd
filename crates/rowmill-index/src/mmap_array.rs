//! An array in anonymous memory-mapped pages, which starts as zeros and takes memory only where it is touched.
//!
//! Indexes are such arrays, and so are the slots for rows in memory. Address space is reserved once for as many slots as
//! there may ever be, so rows never move while their number grows.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU32};

use super::segment;

/// Smallest unit the kernel hands out.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Size and alignment of a huge page. Random lookups run 1.3-1.9x faster with them, because they miss the TLB less.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Arrays of at least this size share huge pages. Smaller ones would fill a small budget with huge pages.
const SHARED_MIN: usize = 128 << 10;
/// Reserved arrays that are expected to grow to this size use huge pages. They must not round up a small budget.
const HUGE_RESERVE_MIN: usize = 32 << 20;

/// Types for which all-zero bytes are a value.
///
/// # Safety
/// The implementor guarantees that, and that the type needs no drop.
pub unsafe trait Zeroed {}
// SAFETY: zero is a number.
unsafe impl Zeroed for u8 {}
// SAFETY: zero is a number.
unsafe impl Zeroed for u32 {}
// SAFETY: zero is a number, and an atomic has the representation of its number.
unsafe impl Zeroed for AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroed for AtomicU8 {}

/// A fixed-size slice in anonymous memory-mapped pages, all zeros at first. Private to the process, never moved.
pub struct MmapArray<T: Zeroed> {
    start: NonNull<T>,
    len: usize,
    /// Length of the mapping; 0 when there is none.
    bytes: usize,
    owns: PhantomData<T>,
}

// SAFETY: the array owns its memory as a boxed slice would; sharing it is sharing `[T]`.
unsafe impl<T: Zeroed + Send> Send for MmapArray<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroed + Sync> Sync for MmapArray<T> {}

impl<T: Zeroed> MmapArray<T> {
    /// An array of `len` zeros. It has huge pages if it is as large as one, and parts of huge pages from
    /// [`SHARED_MIN`] on. No memory is taken for `len` 0.
    ///
    /// Running out of address space ends the process as any failed allocation does; budgets are
    /// checked before this is called.
    ///
    /// # Panics
    /// When the array is larger than the address space.
    pub fn new(len: usize) -> Self {
        let bytes = Self::bytes_for(len);
        let start = match bytes {
            0 => return Self::empty(len),
            SHARED_MIN..HUGE_PAGE_BYTES => segment::take(bytes),
            _ => map_zeroed(bytes, bytes >= HUGE_PAGE_BYTES),
        };
        let start = start.unwrap_or_else(|_| {
            handle_alloc_error(Layout::from_size_align(bytes, PAGE_BYTES).expect("page-aligned size"))
        });
        Self { start: start.cast(), len, bytes, owns: PhantomData }
    }

    /// Reserve address space for `len` values; `expected_bytes` of them decide about huge pages.
    ///
    /// # Errors
    /// The operating system's error when address space is refused, or "out of memory" when the size overflows.
    pub fn reserve(len: usize, expected_bytes: usize) -> io::Result<Self> {
        let bytes =
            len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_next_multiple_of(PAGE_BYTES));
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        if bytes == 0 {
            return Ok(Self::empty(len));
        }
        let start = map_zeroed(bytes, expected_bytes >= HUGE_RESERVE_MIN)?;
        Ok(Self { start: start.cast(), len, bytes, owns: PhantomData })
    }

    /// An array without memory.
    fn empty(len: usize) -> Self {
        Self { start: NonNull::dangling(), len, bytes: 0, owns: PhantomData }
    }

    /// Address of value `index`. It may be dereferenced only if `index` is below the length.
    ///
    /// Borrowing the slice instead would invalidate pointers that other threads hold into it.
    #[inline]
    pub fn pointer(&self, index: usize) -> *mut T {
        debug_assert!(index < self.len, "{index} beyond {}", self.len);
        self.start.as_ptr().wrapping_add(index)
    }

    /// Exact bytes an array of `len` takes once all of it is touched.
    ///
    /// # Panics
    /// When the array is larger than the address space.
    pub fn bytes_for(len: usize) -> usize {
        const { assert!(align_of::<T>() <= PAGE_BYTES) };
        let bytes = len.checked_mul(size_of::<T>()).expect("an array larger than the address space");
        bytes.next_multiple_of(PAGE_BYTES)
    }

    /// Exact bytes this array takes once all of it is touched.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// As [`MmapArray::release`], of the elements from `first` on, if there are any.
    pub fn release_from(&mut self, first: usize) {
        self.release(first.min(self.len)..self.len);
    }

    /// Give back the memory of the whole pages among `elements`, which read as zeros from now on. The last page of the
    /// array is whole where the array ends.
    ///
    /// # Panics
    /// When `elements` are not elements of the array.
    pub fn release(&mut self, elements: Range<usize>) {
        assert!(elements.start <= elements.end && elements.end <= self.len);
        let start = (elements.start * size_of::<T>()).next_multiple_of(PAGE_BYTES);
        let to_the_end = elements.end == self.len;
        let end =
            if to_the_end { self.bytes } else { elements.end * size_of::<T>() / PAGE_BYTES * PAGE_BYTES };
        if start < end {
            // SAFETY: `start..end` are whole pages inside this mapping, and `&mut self` says that
            // no reference into them exists. Zeros are values of `T`, which needs no drop.
            // A kernel that refuses keeps the old bytes: only memory is lost.
            unsafe {
                libc::madvise(self.start.as_ptr().byte_add(start).cast(), end - start, libc::MADV_DONTNEED);
            }
        }
    }
}

impl<T: Zeroed> Deref for MmapArray<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `start` is aligned (page or dangling) and maps `len` values, zero bytes being one.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> DerefMut for MmapArray<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the reference unique.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> Debug for MmapArray<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements", self.len)
    }
}

impl<T: Zeroed> Drop for MmapArray<T> {
    fn drop(&mut self) {
        if self.bytes != 0 {
            unmap(self.start.as_ptr().cast(), self.bytes);
        }
    }
}

/// Map `bytes` (whole pages) of zeros, aligned to huge pages if they are to be `huge`.
///
/// Mappings lie side by side. The first values of one that is not aligned would take a huge page that is mostly its
/// neighbour's, and the budget does not cover it.
pub(super) fn map_zeroed(bytes: usize, huge: bool) -> io::Result<NonNull<u8>> {
    let mapped_bytes = if huge { bytes.saturating_add(HUGE_PAGE_BYTES) } else { bytes };
    // SAFETY: an anonymous private mapping at an address the kernel chooses touches nothing of ours.
    let mapped = unsafe {
        libc::mmap(
            null_mut(),
            mapped_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mapped: *mut u8 = mapped.cast();
    let mut start = mapped;
    if huge {
        let skipped = mapped.addr().next_multiple_of(HUGE_PAGE_BYTES) - mapped.addr();
        // SAFETY: `skipped < HUGE_PAGE_BYTES`, so this stays inside the mapping, as does the rest.
        start = unsafe { mapped.add(skipped) };
        if skipped > 0 {
            unmap(mapped, skipped);
        }
        // SAFETY: one past the part that is kept, at most the end of the mapping.
        unmap(unsafe { start.add(bytes) }, HUGE_PAGE_BYTES - skipped);
        #[cfg(target_os = "linux")]
        // SAFETY: the kept part is a mapping of ours. Advice only: refused, pages stay small.
        unsafe {
            libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE);
        }
    }
    Ok(NonNull::new(start).expect("the kernel maps nothing at address zero"))
}

/// Unmap whole pages of ours that nothing refers to.
pub(super) fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: callers pass a part of a mapping made by `map_zeroed` that is no longer used.
    let result = unsafe { libc::munmap(start.cast(), bytes) };
    debug_assert_eq!(result, 0, "unmapping pages of our own cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_until_written_and_after_release() {
        let mut array = MmapArray::<u32>::new(3 << 20);
        assert_eq!((array.len(), array.bytes()), (3 << 20, 12 << 20));
        assert_eq!(array.as_ptr().addr() % HUGE_PAGE_BYTES, 0);
        assert!(array.iter().all(|&value| value == 0));
        array.fill(7);
        array.release(1..3 * 1024 + 1);
        assert_eq!(array[0], 7, "the page of element 0 is only partly released");
        assert_eq!(array[1024], 0);
        assert_eq!(array[3 * 1024], 7);
    }

    #[test]
    fn an_empty_array_takes_no_memory() {
        let array = MmapArray::<u32>::new(0);
        assert!(array.is_empty());
        assert_eq!(array.bytes(), 0);
    }
    #[test]
    fn reserved_values_are_zeros_until_set_and_after_release() {
        let mut array = MmapArray::<u32>::reserve(1_000_001, 0).unwrap();
        assert_eq!(array[12_345], 0);
        array[12_345] = 7;
        array[1_000_000] = 9;
        array.release_from(usize::MAX);
        array.release_from(20_000);
        assert_eq!((array[12_345], array[1_000_000]), (7, 0), "the last page is given back whole");
        // The size in bytes is 2^64 + 4.
        assert!(MmapArray::<u32>::reserve(usize::MAX / 4 + 2, 0).is_err());
    }

    #[test]
    fn arrays_do_not_share_huge_pages() {
        // Odd sizes, as those of shards are.
        for len in [(80 << 20) + 8192, (40 << 20) + 1, 33 << 20] {
            let arrays = [(); 3].map(|()| MmapArray::<u8>::reserve(len, HUGE_RESERVE_MIN).unwrap());
            for mut array in arrays {
                assert_eq!(array.pointer(0).addr() % HUGE_PAGE_BYTES, 0);
                array[len - 1] = 5;
                assert_eq!((array[0], array[len - 1]), (0, 5));
            }
        }
    }
}
