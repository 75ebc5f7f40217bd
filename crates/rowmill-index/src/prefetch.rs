//! Ask the CPU for cache lines before they are needed.

const LINE_BYTES: usize = 64;

/// Start loading the line that holds `pointer`, which may point anywhere: nothing is read.
#[inline(always)]
pub fn prefetch<T>(pointer: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes no state but the caches; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(pointer.cast());
    }
    // Elsewhere lookups rely on out-of-order execution: stable Rust has no prefetch for them.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}

/// Start loading the lines from `pointer` on.
#[inline(always)]
pub fn prefetch_bytes<T>(pointer: *const T, bytes: usize) {
    // Most rows are one line, and a loop of `step_by` costs more than the prefetch.
    prefetch(pointer);
    let mut line = LINE_BYTES;
    while line < bytes {
        prefetch(pointer.wrapping_byte_add(line));
        line += LINE_BYTES;
    }
}
