//! The system's allocator, which remembers the largest request and how many bytes were in use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);
static LIVE_MAX: AtomicIsize = AtomicIsize::new(0);

/// Count from here.
pub(crate) fn start() {
    LARGEST.store(0, Relaxed);
    LIVE.store(0, Relaxed);
    LIVE_MAX.store(0, Relaxed);
}

/// The largest request, and the most bytes in use beyond those at the start.
pub(crate) fn seen() -> (usize, usize) {
    (LARGEST.load(Relaxed), LIVE_MAX.load(Relaxed) as usize)
}

fn requested(bytes: usize, freed: usize) {
    LARGEST.fetch_max(bytes, Relaxed);
    let grown = bytes as isize - freed as isize;
    LIVE_MAX.fetch_max(LIVE.fetch_add(grown, Relaxed) + grown, Relaxed);
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        requested(layout.size(), 0);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        requested(layout.size(), 0);
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        requested(0, layout.size());
        // SAFETY: the caller's; `address` came from the system's allocator.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        requested(size, layout.size());
        // SAFETY: the caller's; `address` came from the system's allocator.
        unsafe { System.realloc(address, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;
