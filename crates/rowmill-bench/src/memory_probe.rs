//! The limit of the memory: a random 64-byte bucket names a random row, which is copied, updated or pooled.
//!
//! This is the least work of any hash-indexed store per row, without hashing well, comparing keys, locking or
//! counting: two dependent cache misses, both prefetched a batch ahead, on huge pages. Its rate is the limit
//! that the store's rate is divided by.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use rowmill_testkit::Permutation;

/// Rows looked up together; more rows do not make it faster.
const AHEAD: usize = 32;
const BUCKET_WORDS: usize = 8;
/// Entries per bucket: the load of the store's own buckets.
const ENTRIES: u64 = 4;

pub(crate) struct MemoryProbe {
    buckets: HugePages,
    rows: HugePages,
    row_count: u64,
    stride: usize,
}

impl MemoryProbe {
    /// `count` rows of `stride` bytes, in an order unrelated to the order of the buckets.
    pub(crate) fn new(count: u64, stride: usize) -> Self {
        let mut buckets = HugePages::new(count.div_ceil(ENTRIES) as usize * BUCKET_WORDS * 8);
        let order = Permutation::new(count, 99);
        for id in 0..count {
            let word = bucket_word(id);
            // SAFETY: `bucket_word` is below the number of words of all buckets.
            unsafe { buckets.base.add(word).write(order.of(id)) };
        }
        let mut rows = HugePages::new(count as usize * stride);
        rows.fill();
        buckets.touch();
        Self { buckets, rows, row_count: count, stride }
    }

    /// Copy the rows of `ids`, which must be below the count, to `out`.
    pub(crate) fn get(&self, ids: &[u64], out: &mut [f32]) {
        let width = self.stride / size_of::<f32>();
        assert_eq!(out.len(), ids.len() * width);
        self.visit(ids, |position, row| {
            // SAFETY: `row` has `width` floats, and `out` one row per id.
            unsafe { std::ptr::copy_nonoverlapping(row, out.as_mut_ptr().add(position * width), width) };
        });
    }

    /// One step of gradient descent on the rows of `ids`; `gradients` has one row per id. Threads that update
    /// one row at once may lose a step, because the probe's results are not used.
    pub(crate) fn rmw(&self, ids: &[u64], gradients: &[f32]) {
        let width = self.stride / size_of::<f32>();
        assert_eq!(gradients.len(), ids.len() * width);
        self.visit(ids, |position, row| {
            let gradient = &gradients[position * width..][..width];
            for (column, gradient) in gradient.iter().enumerate() {
                // SAFETY: `row` has `width` floats.
                unsafe { *row.add(column) -= 1e-6 * gradient };
            }
        });
    }

    /// Sum the rows of `ids`, `bag` of them into each vector of `out`.
    pub(crate) fn pool(&self, ids: &[u64], bag: usize, out: &mut [f32]) {
        let width = self.stride / size_of::<f32>();
        self.visit(ids, add_to(out, bag, width));
    }

    /// The same, but an id is itself the position of its row, as in an array: one miss.
    pub(crate) fn pool_array(&self, ids: &[u64], bag: usize, out: &mut [f32]) {
        let width = self.stride / size_of::<f32>();
        self.visit_found(ids, |_| {}, |id| id, add_to(out, bag, width));
    }

    /// Visit rows by position, two prefetched misses each.
    #[inline]
    fn visit(&self, ids: &[u64], work: impl FnMut(usize, *mut f32)) {
        let prefetch = |id| self.buckets.prefetch(bucket_word(id) * 8);
        // SAFETY: `id` has a row, so its word is inside the buckets.
        let find = |id| unsafe { self.buckets.base.add(bucket_word(id)).read() };
        self.visit_found(ids, prefetch, find, work);
    }

    /// Visit rows whose numbers `find` knows; `prefetch` is called for each id of a batch before.
    #[inline]
    fn visit_found(
        &self,
        ids: &[u64],
        prefetch: impl Fn(u64),
        find: impl Fn(u64) -> u64,
        mut work: impl FnMut(usize, *mut f32),
    ) {
        let mut rows = [std::ptr::null_mut::<f32>(); AHEAD];
        for (chunk_number, chunk) in ids.chunks(AHEAD).enumerate() {
            for &id in chunk {
                debug_assert!(id < self.row_count);
                prefetch(id);
            }
            for (row, &id) in rows.iter_mut().zip(chunk) {
                let offset = find(id) as usize * self.stride;
                for line in (0..self.stride).step_by(64) {
                    self.rows.prefetch(offset + line);
                }
                // SAFETY: the row is inside the memory.
                *row = unsafe { self.rows.base.byte_add(offset) }.cast();
            }
            for (within, &row) in rows[..chunk.len()].iter().enumerate() {
                work(chunk_number * AHEAD + within, row);
            }
        }
    }
}

/// Adds rows of `width` floats to the vectors of `out`, `bag` rows to each.
fn add_to(out: &mut [f32], bag: usize, width: usize) -> impl FnMut(usize, *mut f32) {
    out.fill(0.0);
    let (mut begin, mut added) = (0, 0);
    move |_, row| {
        if added == bag {
            (begin, added) = (begin + width, 0);
        }
        added += 1;
        for (column, sum) in out[begin..][..width].iter_mut().enumerate() {
            // SAFETY: `row` has `width` floats.
            *sum += unsafe { *row.add(column) };
        }
    }
}

/// Position of the row number of an id. Ids are random, so their own bits serve as hash.
#[inline]
fn bucket_word(id: u64) -> usize {
    ((id / ENTRIES) as usize * BUCKET_WORDS) + (id % ENTRIES) as usize
}

/// Zeroed memory in huge pages.
pub(crate) struct HugePages {
    base: *mut u64,
    bytes: usize,
}

// SAFETY: plain memory; `fill` and `touch` need `&mut self`, and lost updates through `visit` are accepted.
unsafe impl Sync for HugePages {}
// SAFETY: plain memory that the struct owns.
unsafe impl Send for HugePages {}

impl HugePages {
    pub(crate) fn new(bytes: usize) -> Self {
        // SAFETY: a new private mapping, with advice to use huge pages.
        let base = unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            libc::madvise(base, bytes, libc::MADV_HUGEPAGE);
            base
        };
        assert_ne!(base, libc::MAP_FAILED, "the probe needs {bytes} bytes of memory");
        Self { base: base.cast(), bytes }
    }

    /// Change one byte.
    ///
    /// # Panics
    /// When the offset lies outside.
    #[inline]
    pub(crate) fn increment(&mut self, offset: usize) {
        assert!(offset < self.bytes);
        // SAFETY: the offset is inside the mapping.
        unsafe {
            let byte = self.base.byte_add(offset).cast::<u8>();
            byte.write_volatile(byte.read_volatile().wrapping_add(1));
        }
    }

    /// Let every page be resident.
    pub(crate) fn touch(&mut self) {
        for offset in (0..self.bytes).step_by(4096) {
            // SAFETY: the offset is inside the mapping.
            unsafe {
                let byte = self.base.byte_add(offset).cast::<u8>();
                byte.write_volatile(byte.read_volatile());
            }
        }
    }

    /// Fill with values that are not zero, so that no page is shared or skipped.
    fn fill(&mut self) {
        // SAFETY: the whole mapping as floats; it is aligned to pages.
        let floats = unsafe { std::slice::from_raw_parts_mut(self.base.cast::<f32>(), self.bytes / 4) };
        floats.iter_mut().enumerate().for_each(|(number, value)| *value = number as f32);
    }

    #[inline]
    fn prefetch(&self, offset: usize) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.wrapping_byte_add(offset).cast()) };
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
