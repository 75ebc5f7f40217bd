//! A lease whose parts have owners of their own.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{Buffer, Lease};

/// Memory that is given out part by part, each behind the one before. Its pages return when the last part is dropped.
#[derive(Debug)]
pub(crate) struct Strip {
    lease: Arc<Lease>,
    given: usize,
}

/// Bytes of a strip that one owner writes.
#[derive(Debug)]
pub(crate) struct StripPart {
    lease: Arc<Lease>,
    start: usize,
    bytes: usize,
}

impl Strip {
    pub(crate) fn new(lease: Lease) -> Self {
        Self { lease: Arc::new(lease), given: 0 }
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.lease.bytes - self.given
    }

    /// The next bytes.
    ///
    /// # Panics
    /// When fewer are left.
    pub(crate) fn part(&mut self, bytes: usize) -> StripPart {
        assert!(bytes <= self.left(), "{bytes} bytes of the {} that are left", self.left());
        let start = self.given;
        self.given += bytes;
        StripPart { lease: Arc::clone(&self.lease), start, bytes }
    }
}

impl StripPart {
    /// Make the part read-only and shareable.
    pub(crate) fn share(self) -> Buffer {
        let Self { lease, start, bytes } = self;
        Buffer::of_strip(lease, start, bytes)
    }
}

impl Deref for StripPart {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the strip gave these bytes to `self` alone, and writing them needs `&mut self`.
        unsafe { self.lease.slice(self.start, self.bytes) }
    }
}

impl DerefMut for StripPart {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the strip gave these bytes to `self` alone, which is borrowed uniquely.
        unsafe { self.lease.slice_mut(self.start, self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Arena;
    use super::*;

    #[test]
    fn parts_side_by_side_are_one_buffer_and_hold_the_strip() {
        let arena = Arena::new(1 << 20).unwrap();
        let strips = [(); 2].map(|()| Strip::new(arena.lease(10_000).unwrap()));
        let [mut strip, mut other] = strips;
        let [a, b, c] = [(1, 4000), (2, 0), (3, 5000)].map(|(fill, bytes)| {
            let mut part = strip.part(bytes);
            part.fill(fill);
            assert!(part.iter().all(|&byte| byte == fill));
            part.share()
        });
        assert_eq!(strip.left(), 1000);
        let foreign = other.part(10).share();
        drop((strip, other));
        let whole = Buffer::side_by_side([&a, &b, &c]).unwrap();
        assert_eq!([&whole[..4000], &whole[4000..]], [&[1; 4000][..], &[3; 5000]]);
        assert!(Buffer::side_by_side([&a, &c]).is_some(), "nothing lies between them");
        let heap = Buffer::from(&[1_u8, 2][..]);
        for apart in [[&c, &a], [&a, &a], [&c, &foreign], [&heap, &heap], [&a, &heap]] {
            assert!(Buffer::side_by_side(apart).is_none());
        }
        drop((a, b, c, foreign));
        assert_eq!(arena.held_bytes(), 3 * 4096, "the buffer of all holds the whole strip");
        drop(whole);
        assert_eq!(arena.held_bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "11 bytes of the 10 that are left")]
    fn a_strip_gives_no_more_than_it_has() {
        let arena = Arena::new(1 << 20).unwrap();
        Strip::new(arena.lease(10).unwrap()).part(11);
    }
}
