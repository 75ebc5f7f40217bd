//! A lease whose parts have owners of their own.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use super::{Buffer, Lease};

/// Memory that is given out part by part, each behind the one before. The parts own it: its pages return when the last of
/// them is dropped.
#[derive(Debug)]
pub(crate) struct Strip {
    lease: Weak<Lease>,
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
    /// A strip, and its first bytes.
    ///
    /// # Panics
    /// When the lease has fewer.
    pub(crate) fn start(lease: Lease, bytes: usize) -> (Self, StripPart) {
        let lease = Arc::new(lease);
        let mut strip = Self { lease: Arc::downgrade(&lease), given: 0 };
        let first = strip.part(bytes).expect("the lease holds the first part");
        (strip, first)
    }

    /// The next bytes; `None` where fewer are left, or all parts were dropped.
    pub(crate) fn part(&mut self, bytes: usize) -> Option<StripPart> {
        let lease = self.lease.upgrade()?;
        let (start, end) = (self.given, self.given.checked_add(bytes)?);
        (end <= lease.bytes).then(|| {
            self.given = end;
            StripPart { lease, start, bytes }
        })
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

    /// Fill a part and share it.
    fn filled(mut part: StripPart, fill: u8) -> Buffer {
        part.fill(fill);
        assert!(part.iter().all(|&byte| byte == fill));
        part.share()
    }

    #[test]
    fn parts_side_by_side_are_one_buffer_and_hold_the_strip() {
        let arena = Arena::new(1 << 20).unwrap();
        let start = |bytes| Strip::start(arena.lease(10_000).unwrap(), bytes);
        let ((mut strip, first), (_, foreign)) = (start(4000), start(10));
        let (a, foreign) = (filled(first, 1), foreign.share());
        let [b, c] = [(2, 0), (3, 5000)].map(|(fill, bytes)| filled(strip.part(bytes).unwrap(), fill));
        assert!(strip.part(1001).is_none());
        let whole = Buffer::side_by_side([&a, &b, &c]).unwrap();
        assert_eq!([&whole[..4000], &whole[4000..]], [&[1; 4000][..], &[3; 5000]]);
        assert!(Buffer::side_by_side([&a, &c]).is_some(), "nothing lies between them");
        let heap = Buffer::from(&[1_u8, 2][..]);
        for apart in [[&c, &a], [&a, &a], [&c, &foreign], [&heap, &heap], [&a, &heap]] {
            assert!(Buffer::side_by_side(apart).is_none());
        }
        drop((a, b, c, foreign));
        assert_eq!(arena.held_bytes(), 3 * 4096, "the buffer of all holds the whole strip");
        assert_eq!(strip.part(1000).unwrap().len(), 1000);
        drop(whole);
        assert_eq!(arena.held_bytes(), 0);
        assert!(strip.part(0).is_none(), "its memory has returned");
    }
}
