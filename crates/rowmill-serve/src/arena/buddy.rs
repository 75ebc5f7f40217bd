//! Which pages of an arena are free: a buddy allocator (Knowlton, "A fast storage allocator", 1965).
//!
//! Blocks are powers of two of pages, so that neighbours join again when both are free. A run takes the smallest block
//! that holds it and returns the rest of the block at once: no page is lost to rounding. Equal requests give equal
//! answers, and low pages are taken first, so that few pages stay resident under light load.

use std::collections::BTreeSet;

/// The free pages.
#[derive(Debug)]
pub(crate) struct Buddy {
    /// First pages of free blocks, by the logarithm of their size.
    free: Vec<BTreeSet<u32>>,
    free_pages: u32,
}

impl Buddy {
    /// `pages` free pages.
    pub(crate) fn new(pages: u32) -> Self {
        let mut buddy = Self { free: vec![BTreeSet::new(); 32], free_pages: 0 };
        buddy.give_back(0, pages);
        buddy
    }

    pub(crate) fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// The first of `pages` neighbouring pages, if there are so many.
    pub(crate) fn take(&mut self, pages: u32) -> Option<u32> {
        debug_assert!(pages > 0);
        let order = pages.checked_next_power_of_two()?.trailing_zeros() as usize;
        let found = (order..self.free.len()).find(|&size| !self.free[size].is_empty())?;
        let first = self.free[found].pop_first()?;
        self.free_pages -= 1 << found;
        self.give_back(first + pages, (1 << found) - pages);
        Some(first)
    }

    /// Free `pages` pages from `first` on.
    pub(crate) fn give_back(&mut self, mut first: u32, mut pages: u32) {
        self.free_pages += pages;
        while pages > 0 {
            // The largest block that begins here and is not too large. Page 0 is aligned to any size.
            let order = first.trailing_zeros().min(pages.ilog2());
            self.join(first, order as usize);
            first += 1 << order;
            pages -= 1 << order;
        }
    }

    /// Add a free block, joined with its buddy as long as that is free, too.
    fn join(&mut self, mut first: u32, mut order: usize) {
        while order + 1 < self.free.len() && self.free[order].remove(&(first ^ (1 << order))) {
            first &= !(1 << order);
            order += 1;
        }
        let is_new = self.free[order].insert(first);
        debug_assert!(is_new, "pages are given back once");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map of single pages: runs are disjoint, refused only where no run of free pages holds a
        /// power of two that fits, and everything joins again.
        #[test]
        fn agrees_with_a_map_of_pages(
            pages in 1_u32..200,
            steps in prop::collection::vec((any::<bool>(), 1_u32..70, any::<prop::sample::Index>()), 0..120),
        ) {
            let mut buddy = Buddy::new(pages);
            let whole = buddy.free.clone();
            let mut map = vec![false; pages as usize];
            let mut runs: Vec<(u32, u32)> = Vec::new();
            for (is_take, size, which) in steps {
                if is_take || runs.is_empty() {
                    let free_blocks = |map: &[bool], block: u32| {
                        (0..pages / block).any(|at| {
                            map[(at * block) as usize..((at + 1) * block) as usize].iter().all(|taken| !taken)
                        })
                    };
                    let expected = free_blocks(&map, size.next_power_of_two());
                    let taken = buddy.take(size);
                    prop_assert_eq!(taken.is_some(), expected);
                    if let Some(first) = taken {
                        for page in first..first + size {
                            prop_assert!(!std::mem::replace(&mut map[page as usize], true));
                        }
                        runs.push((first, size));
                    }
                } else {
                    let (first, size) = runs.swap_remove(which.index(runs.len()));
                    map[first as usize..(first + size) as usize].fill(false);
                    buddy.give_back(first, size);
                }
                let free = map.iter().filter(|taken| !**taken).count();
                prop_assert_eq!(buddy.free_pages() as usize, free);
            }
            for (first, size) in runs {
                buddy.give_back(first, size);
            }
            prop_assert_eq!(buddy.free, whole);
        }
    }
}
