//! The memory that one ring reads into, allocated in runs of blocks.

use crate::read_plan::MERGED_BYTES_MAX;
use crate::{AlignedBuffer, BLOCK_BYTES};

/// The number of blocks of an arena is a multiple of this: one word of its bitmap.
pub(crate) const BLOCKS_STEP: usize = u64::BITS as usize;

// A run lies within one word of the bitmap, so an empty arena always has room for the largest read.
const _: () = assert!(MERGED_BYTES_MAX / BLOCK_BYTES <= BLOCKS_STEP);

/// Block-aligned memory with a bitmap of its free blocks.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: AlignedBuffer,
    free: Box<[u64]>,
}

/// The blocks of an arena that one read uses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    first: u16,
    blocks: u16,
}

impl Region {
    pub(crate) fn bytes(self) -> usize {
        usize::from(self.blocks) * BLOCK_BYTES
    }
}

impl Arena {
    /// An arena of `blocks`, a multiple of [`BLOCKS_STEP`].
    pub(crate) fn new(blocks: usize) -> Self {
        assert!(blocks.is_multiple_of(BLOCKS_STEP), "an arena of {blocks} blocks");
        let free = vec![u64::MAX; blocks / BLOCKS_STEP].into_boxed_slice();
        Self { memory: AlignedBuffer::new(blocks * BLOCK_BYTES), free }
    }

    /// Allocate `bytes` (whole blocks, at most [`MERGED_BYTES_MAX`]); `None` if no run of free blocks is long
    /// enough.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Region> {
        let blocks = bytes / BLOCK_BYTES;
        debug_assert!((1..=MERGED_BYTES_MAX / BLOCK_BYTES).contains(&blocks));
        for (word, free) in self.free.iter_mut().enumerate() {
            let starts = starts_of_runs(*free, blocks);
            if starts != 0 {
                let first = starts.trailing_zeros();
                *free &= !(mask(blocks) << first);
                return Some(Region {
                    first: (word * u64::BITS as usize) as u16 + first as u16,
                    blocks: blocks as u16,
                });
            }
        }
        None
    }

    pub(crate) fn give_back(&mut self, region: Region) {
        let bits = mask(usize::from(region.blocks)) << (u32::from(region.first) % u64::BITS);
        let free = &mut self.free[usize::from(region.first) / u64::BITS as usize];
        debug_assert_eq!(*free & bits, 0, "a region is freed once");
        *free |= bits;
    }

    /// Free all regions.
    pub(crate) fn clear(&mut self) {
        self.free.fill(u64::MAX);
    }

    /// Address of the first byte of a region.
    pub(crate) fn start_of(&self, region: Region) -> *mut u8 {
        self.memory.start().wrapping_add(usize::from(region.first) * BLOCK_BYTES)
    }

    /// The bytes of a region.
    ///
    /// # Safety
    /// The region is allocated, and the kernel no longer writes to it.
    pub(crate) unsafe fn bytes_mut(&mut self, region: Region) -> &mut [u8] {
        // SAFETY: the region lies within the arena's memory, which is initialised. Only the bytes of this
        // region are borrowed: the kernel may be writing to other regions, but not to this one, as the caller
        // guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.start_of(region), region.bytes()) }
    }

    /// The whole arena, for registration with the kernel.
    pub(crate) fn as_iovec(&self) -> libc::iovec {
        libc::iovec { iov_base: self.memory.start().cast(), iov_len: self.memory.len() }
    }
}

fn mask(blocks: usize) -> u64 {
    (1 << blocks) - 1
}

/// Bitmap of the positions in `free` where a run of `blocks` set bits starts.
fn starts_of_runs(free: u64, blocks: usize) -> u64 {
    let mut starts = free;
    let mut covered = 1;
    while covered < blocks {
        let step = covered.min(blocks - covered);
        starts &= starts >> step;
        covered += step;
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use rowmill_splitmix::SplitMix64;

    #[test]
    fn starts_of_runs_equal_a_brute_force_search() {
        let mut seeded = SplitMix64::new(1);
        for _ in 0..2000 {
            let free = seeded.next_u64() | seeded.next_u64();
            let blocks = 1 + seeded.below(16) as usize;
            let expected = (0..=64 - blocks)
                .filter(|start| (free >> start) & mask(blocks) == mask(blocks))
                .fold(0, |bits, start| bits | 1_u64 << start);
            assert_eq!(starts_of_runs(free, blocks), expected);
        }
    }

    #[test]
    fn allocations_never_overlap_and_can_all_be_freed() {
        let mut seeded = SplitMix64::new(2);
        let mut arena = Arena::new(2 * BLOCKS_STEP);
        let mut taken: Vec<(Region, u8)> = Vec::new();
        for step in 0..5000_u32 {
            let bytes = (1 + seeded.below(16) as usize) * BLOCK_BYTES;
            match arena.take(bytes) {
                Some(region) if seeded.below(3) > 0 || taken.is_empty() => {
                    // SAFETY: the region is allocated, and no kernel writes to this arena.
                    unsafe { arena.bytes_mut(region) }.fill(step as u8);
                    taken.push((region, step as u8));
                }
                other => {
                    if let Some(region) = other {
                        arena.give_back(region);
                    }
                    let (region, fill) = taken.swap_remove(seeded.below(taken.len() as u64) as usize);
                    // SAFETY: as above: allocated, and no kernel writes to it.
                    assert!(unsafe { arena.bytes_mut(region) }.iter().all(|byte| *byte == fill));
                    arena.give_back(region);
                }
            }
        }
        for (region, _) in taken {
            arena.give_back(region);
        }
        assert_eq!(*arena.free, [u64::MAX; 2]);
    }
}
