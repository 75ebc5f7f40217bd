//! The system's allocator with counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering::Relaxed};

static TOTAL: AtomicU64 = AtomicU64::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);
static LIVE_MOST: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator, which counts the bytes that all threads of a program request:
///
/// ```
/// use rowmill_testkit::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
///
/// CountingAllocator::start();
/// drop(vec![0_u8; 1000]);
/// assert!(CountingAllocator::largest() >= 1000);
/// ```
pub struct CountingAllocator;

impl CountingAllocator {
    /// Forget the largest request, and count bytes in use from here.
    pub fn start() {
        LARGEST.store(0, Relaxed);
        LIVE.store(0, Relaxed);
        LIVE_MOST.store(0, Relaxed);
    }

    /// Bytes of the largest request since the start.
    pub fn largest() -> usize {
        LARGEST.load(Relaxed)
    }

    /// The most bytes in use at once, beyond those in use at the start.
    pub fn live_most() -> usize {
        LIVE_MOST.load(Relaxed) as usize
    }

    /// Bytes requested since the program began. A request that grows memory counts its growth.
    pub fn total() -> u64 {
        TOTAL.load(Relaxed)
    }
}

fn count(bytes: usize, freed: usize) {
    TOTAL.fetch_add(bytes.saturating_sub(freed) as u64, Relaxed);
    LARGEST.fetch_max(bytes, Relaxed);
    let grown = bytes as isize - freed as isize;
    LIVE_MOST.fetch_max(LIVE.fetch_add(grown, Relaxed) + grown, Relaxed);
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: by the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: by the contract of this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: by the contract of this function; `address` came from the system's allocator.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: by the contract of this function; `address` came from the system's allocator.
        unsafe { System.realloc(address, layout, size) }
    }
}
