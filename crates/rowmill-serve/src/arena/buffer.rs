//! Read-only bytes of a message: part of a lease of this arena, or of memory that a peer lends.

use std::fmt::{self, Debug, Formatter};
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::{Arena, Lease, Mapping};

/// Shared read-only bytes. Clones and slices share the memory, which returns when the last of them is dropped.
#[derive(Clone, Default)]
pub struct Buffer {
    holder: Holder,
    start: usize,
    bytes: usize,
}

#[derive(Clone, Default)]
enum Holder {
    #[default]
    Nothing,
    Lease(Arc<Lease>),
    Heap(Arc<[u8]>),
    Peer(Arc<LentMessage>),
}

/// Where a message's lender learns that its memory is free again.
pub(crate) trait Release: Send + Sync + std::fmt::Debug {
    fn release(&self, message: u64);
}

/// Memory of a peer that one message lends to this process.
#[derive(Debug)]
pub(crate) struct LentMessage {
    /// The peer's whole arena, read-only.
    pub(crate) memory: Arc<Mapping>,
    pub(crate) message: u64,
    pub(crate) lender: Arc<dyn Release>,
}

impl Drop for LentMessage {
    fn drop(&mut self) {
        self.lender.release(self.message);
    }
}

impl Buffer {
    pub(super) fn of_lease(lease: Lease) -> Self {
        let bytes = lease.bytes;
        Self { holder: Holder::Lease(Arc::new(lease)), start: 0, bytes }
    }

    pub(super) fn of_strip(lease: Arc<Lease>, start: usize, bytes: usize) -> Self {
        Self { holder: Holder::Lease(lease), start, bytes }
    }

    /// Parts of one strip that lie side by side, in this order, as one buffer; `None` where they do not.
    pub(crate) fn side_by_side<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let mut whole = parts.next()?.clone();
        for part in parts {
            let (Holder::Lease(lease), Holder::Lease(next)) = (&whole.holder, &part.holder) else {
                return None;
            };
            if !Arc::ptr_eq(lease, next) || part.start != whole.start + whole.bytes {
                return None;
            }
            whole.bytes += part.bytes;
        }
        Some(whole)
    }

    /// Bytes of a peer's arena; `None` where they lie outside of it.
    pub(crate) fn of_peer(message: &Arc<LentMessage>, start: u64, bytes: u64) -> Option<Self> {
        let (start, bytes) = (usize::try_from(start).ok()?, usize::try_from(bytes).ok()?);
        (start.checked_add(bytes)? <= message.memory.bytes()).then(|| Self {
            holder: Holder::Peer(Arc::clone(message)),
            start,
            bytes,
        })
    }

    /// A part of these bytes, which shares their memory.
    ///
    /// # Panics
    /// When the range lies outside of them.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        Self { holder: self.holder.clone(), start: self.start + range.start, bytes: range.len() }
    }

    /// Where these bytes lie in `arena`, if they do.
    pub(crate) fn offset_in(&self, arena: &Arena) -> Option<u64> {
        match &self.holder {
            Holder::Lease(lease) if lease.arena.is(arena) => Some((lease.start() + self.start) as u64),
            _ => None,
        }
    }
}

impl From<&[u8]> for Buffer {
    /// A copy outside of any arena: for small tensors.
    fn from(bytes: &[u8]) -> Self {
        Self { holder: Holder::Heap(bytes.into()), start: 0, bytes: bytes.len() }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Debug for Buffer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.holder {
            Holder::Nothing => &[],
            // SAFETY: the range lies inside the lease, and its writer gave it up when it was shared. No other bytes of the
            // lease are borrowed: parts of a strip may still be written.
            Holder::Lease(lease) => unsafe { lease.slice(self.start, self.bytes) },
            Holder::Heap(bytes) => &bytes[self.start..self.start + self.bytes],
            // SAFETY: the range lies inside the mapping, as `of_peer` checked. The peer wrote these bytes before it
            // lent them, and by the protocol writes them again only after `release`. A peer that breaks this rule
            // changes values, never lengths or addresses: the file is sealed against shrinking.
            Holder::Peer(message) => unsafe { message.memory.slice(self.start, self.bytes) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use parking_lot::Mutex;

    use super::super::sealed_file;
    use super::*;

    #[derive(Debug, Default)]
    struct Released(Mutex<Vec<u64>>);

    impl Release for Released {
        fn release(&self, message: u64) {
            self.0.lock().push(message);
        }
    }

    #[test]
    fn bytes_of_a_peer_lie_inside_its_memory_and_are_released_once() {
        let file = sealed_file(8192).unwrap();
        let memory = Arc::new(Mapping::readable(file.as_fd(), 8192).unwrap());
        let lender = Arc::new(Released::default());
        let message = Arc::new(LentMessage { memory, message: 5, lender: Arc::<Released>::clone(&lender) });
        let cases =
            [(0, 8192, true), (8192, 0, true), (1, 8192, false), (8193, 0, false), (u64::MAX, 2, false)];
        for (start, bytes, is_inside) in cases {
            assert_eq!(
                Buffer::of_peer(&message, start, bytes).is_some(),
                is_inside,
                "{bytes} bytes at {start}"
            );
        }
        let whole = Buffer::of_peer(&message, 0, 8192).unwrap();
        let part = whole.slice(4096..5000);
        drop((message, whole));
        assert_eq!(part.len(), 904);
        assert!(lender.0.lock().is_empty());
        drop(part);
        assert_eq!(*lender.0.lock(), [5]);
    }
}
