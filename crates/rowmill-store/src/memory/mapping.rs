//! Memory reserved once and committed by touching it: slots never move while their number grows.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// Regions at least this large ask for huge pages: a 2 MiB page saves a TLB miss per random row
/// (1.3-1.9x, measured), but must not round up a small budget.
const HUGE_BYTES_MIN: usize = 32 << 20;
/// Size and alignment of a huge page.
const HUGE_PAGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;

/// A zeroed array of `capacity` plain values that takes physical memory only where it was touched.
#[derive(Debug)]
pub(crate) struct Mapping<T> {
    base: NonNull<T>,
    capacity: usize,
    marker: PhantomData<T>,
}

// SAFETY: the mapping is plain memory owned by this value; access is governed by the borrow of `Mapping`.
unsafe impl<T: Send> Send for Mapping<T> {}
// SAFETY: as above; shared access only hands out shared references and raw pointers.
unsafe impl<T: Sync> Sync for Mapping<T> {}

/// Types for which all-zero bytes are a value.
///
/// # Safety
/// Implement only for types without padding-dependent validity, references or niches.
pub(crate) unsafe trait Zeroable: Copy {}

// SAFETY: any bit pattern is a u8.
unsafe impl Zeroable for u8 {}
// SAFETY: any bit pattern is a u32.
unsafe impl Zeroable for u32 {}

impl<T: Zeroable> Mapping<T> {
    /// Reserve room for `capacity` values; `expected_bytes` decides about huge pages.
    ///
    /// # Errors
    /// The operating system's error when address space is refused, or "out of memory" when the size overflows.
    pub(crate) fn new(capacity: usize, expected_bytes: usize) -> std::io::Result<Self> {
        let bytes = capacity.checked_mul(size_of::<T>()).ok_or(std::io::ErrorKind::OutOfMemory)?.max(1);
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let huge = expected_bytes >= HUGE_BYTES_MIN;
        let mapped_bytes = if huge { bytes.saturating_add(HUGE_PAGE_BYTES) } else { bytes };
        // SAFETY: an anonymous private mapping at an address the kernel picks touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let mut base = base.cast::<u8>();
        if huge {
            // Mappings lie side by side. Were this one not aligned, its first value would take a huge page that is
            // mostly its neighbour's, and the budget does not cover it.
            let skipped = base.addr().next_multiple_of(HUGE_PAGE_BYTES) - base.addr();
            // SAFETY: what is cut off at both ends was mapped just above, is whole pages, and nothing refers to it.
            // Advice may be refused; that costs speed only.
            unsafe {
                if skipped > 0 {
                    libc::munmap(base.cast(), skipped);
                }
                base = base.add(skipped);
                libc::munmap(base.add(bytes).cast(), HUGE_PAGE_BYTES - skipped);
                libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE);
            }
        }
        let base = NonNull::new(base.cast::<T>()).expect("mmap returned a non-null address");
        Ok(Self { base, capacity, marker: PhantomData })
    }

    /// Address of value `index`. It may be dereferenced only if `index` is below [`Mapping::capacity`].
    #[inline]
    pub(crate) fn pointer(&self, index: usize) -> *mut T {
        debug_assert!(index < self.capacity, "{index} beyond {}", self.capacity);
        self.base.as_ptr().wrapping_add(index)
    }

    /// Value `index`.
    ///
    /// # Panics
    /// If `index` is not below [`Mapping::capacity`].
    #[inline]
    pub(crate) fn get(&self, index: usize) -> T {
        assert!(index < self.capacity, "{index} beyond {}", self.capacity);
        // SAFETY: in bounds (asserted); the memory is initialised (zero pages) and T is Copy.
        unsafe { self.pointer(index).read() }
    }

    /// Replace value `index`.
    ///
    /// # Panics
    /// If `index` is not below [`Mapping::capacity`].
    #[inline]
    pub(crate) fn set(&mut self, index: usize, value: T) {
        assert!(index < self.capacity, "{index} beyond {}", self.capacity);
        // SAFETY: in bounds (asserted); the exclusive borrow excludes other access.
        unsafe { self.pointer(index).write(value) }
    }

    /// Values there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Give the physical memory of `from..capacity` back; the values read as zero afterwards.
    pub(crate) fn release_from(&mut self, from: usize) {
        let begin = (from.min(self.capacity) * size_of::<T>()).next_multiple_of(PAGE_BYTES);
        let end = self.capacity * size_of::<T>();
        if begin < end {
            // SAFETY: the range lies inside the mapping and no reference into it is alive (exclusive borrow).
            unsafe {
                libc::madvise(
                    self.base.as_ptr().cast::<u8>().add(begin).cast(),
                    end - begin,
                    libc::MADV_DONTNEED,
                )
            };
        }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping made in `new`, unmapped only here.
        unsafe { libc::munmap(self.base.as_ptr().cast(), (self.capacity * size_of::<T>()).max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_start_as_zero_and_keep_what_was_set() {
        let mut mapping = Mapping::<u32>::new(1 << 20, 0).unwrap();
        assert_eq!(mapping.get(12_345), 0);
        mapping.set(12_345, 7);
        mapping.set(1_000_000, 9);
        assert_eq!((mapping.get(12_345), mapping.get(1_000_000)), (7, 9));
        mapping.release_from(20_000);
        assert_eq!((mapping.get(12_345), mapping.get(1_000_000)), (7, 0), "released memory reads as zero");
    }

    #[test]
    fn what_lies_beyond_is_refused() {
        let mut mapping = Mapping::<u32>::new(1000, 0).unwrap();
        mapping.release_from(usize::MAX / 4 + 1);
        assert!(std::panic::catch_unwind(|| mapping.get(1000)).is_err());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| mapping.set(1000, 1))).is_err());
        // The size in bytes is 2^64 + 4.
        assert!(Mapping::<u32>::new(usize::MAX / 4 + 2, 0).is_err());
    }

    #[test]
    fn huge_pages_are_shared_by_no_two_mappings() {
        // Odd sizes, as those of shards are.
        for capacity in [(80 << 20) + 8192, (40 << 20) + 1, 33 << 20] {
            let mappings = [(); 3].map(|()| Mapping::<u8>::new(capacity, HUGE_BYTES_MIN).unwrap());
            for mut mapping in mappings {
                assert_eq!(mapping.pointer(0).addr() % HUGE_PAGE_BYTES, 0);
                mapping.set(capacity - 1, 5);
                assert_eq!((mapping.get(0), mapping.get(capacity - 1)), (0, 5));
            }
        }
    }
}
