//! The arena: one bounded piece of memory that holds every tensor on its way in or out.
//!
//! Invariants:
//! - The arena never grows. Its size is the process's `wire_memory`; a lease beyond it is refused or waits.
//! - A page belongs to one [`Lease`] at most. A lease is written through `&mut` alone; once shared as a [`Buffer`] it
//!   is read-only, and its pages return when the last buffer is dropped. The same holds for each part of a [`Strip`].
//! - The memory is a sealed memfd, so that a peer on this machine can map it and read tensors without a copy
//!   (transport `shm://`), and no peer can shrink it under a reader.

mod buddy;
mod buffer;
mod mapping;
mod strip;
mod words;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use buddy::Buddy;
pub use buffer::Buffer;
pub(crate) use buffer::{LentMessage, Release};
pub(crate) use mapping::{Mapping, sealed_file, sealed_file_bytes};
pub(crate) use strip::{Strip, StripPart};
pub(crate) use words::{Word, words, words_mut};

/// Granule of leases: a page, so that neighbouring leases share no cache line or page.
const PAGE_BYTES: usize = 4096;

/// Bounded memory for tensors. Clones are the same arena.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: Mapping,
    file: OwnedFd,
    pages: Mutex<Buddy>,
    room: Notify,
}

/// Pages of an arena that one owner writes.
#[derive(Debug)]
pub struct Lease {
    arena: Arena,
    first_page: u32,
    pages: u32,
    bytes: usize,
}

/// Why the arena gives no memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// More than the whole arena.
    #[error("{bytes} bytes are more than the arena of {arena_bytes} bytes: raise wire_memory")]
    TooLarge {
        /// Requested bytes.
        bytes: usize,
        /// The whole arena.
        arena_bytes: usize,
    },
    /// Other messages hold the memory.
    #[error(
        "no room for {bytes} bytes: messages hold {held_bytes} of the arena's {arena_bytes} bytes; raise \
         wire_memory or send fewer requests at once"
    )]
    Full {
        /// Requested bytes.
        bytes: usize,
        /// Bytes that messages hold.
        held_bytes: usize,
        /// The whole arena.
        arena_bytes: usize,
    },
    /// The system gives no memory.
    #[error("cannot map an arena of {bytes} bytes: {cause}; lower wire_memory")]
    System {
        /// Size of the arena.
        bytes: usize,
        /// The error of the system.
        cause: std::io::Error,
    },
}

impl Arena {
    /// An arena of `bytes`, rounded up to whole pages. Pages become resident when they are first written.
    ///
    /// # Errors
    /// When the system gives no memory, or `bytes` is 0 or beyond 16 TiB.
    pub fn new(bytes: usize) -> Result<Self, ArenaError> {
        let map = || {
            let pages = u32::try_from(bytes.div_ceil(PAGE_BYTES))
                .ok()
                .filter(|&pages| pages > 0)
                .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
            let file = sealed_file(pages as usize * PAGE_BYTES)?;
            let memory = Mapping::writable(file.as_fd(), pages as usize * PAGE_BYTES)?;
            Ok((memory, file, Mutex::new(Buddy::new(pages))))
        };
        let (memory, file, pages) = map().map_err(|cause| ArenaError::System { bytes, cause })?;
        Ok(Self(Arc::new(Inner { memory, file, pages, room: Notify::new() })))
    }

    /// Size of the arena.
    pub fn bytes(&self) -> usize {
        self.0.memory.bytes()
    }

    /// Where the arena begins, for a driver that pins its pages. It stays there while a clone lives.
    pub fn address(&self) -> usize {
        self.0.memory.address()
    }

    /// What leases hold now, in whole pages.
    pub fn held_bytes(&self) -> usize {
        self.bytes() - self.0.pages.lock().free_pages() as usize * PAGE_BYTES
    }

    /// Memory for `bytes`, aligned to a page. Its content is arbitrary until it is written.
    ///
    /// # Errors
    /// When the arena has no room now, or never will.
    pub fn lease(&self, bytes: usize) -> Result<Lease, ArenaError> {
        let arena_bytes = self.bytes();
        if bytes > arena_bytes {
            return Err(ArenaError::TooLarge { bytes, arena_bytes });
        }
        // An empty lease holds a page, so that every lease has an address of its own.
        let pages = bytes.div_ceil(PAGE_BYTES).max(1) as u32;
        let taken = self.0.pages.lock().take(pages);
        let first_page =
            taken.ok_or_else(|| ArenaError::Full { bytes, held_bytes: self.held_bytes(), arena_bytes })?;
        Ok(Lease { arena: self.clone(), first_page, pages, bytes })
    }

    /// Memory for `bytes` as soon as other leases return enough of it.
    ///
    /// # Errors
    /// When there is no room until `deadline`, or never will be.
    pub async fn lease_by(&self, bytes: usize, deadline: Instant) -> Result<Lease, ArenaError> {
        loop {
            let mut returned = std::pin::pin!(self.0.room.notified());
            // Before the attempt, so that no return between attempt and wait is missed.
            returned.as_mut().enable();
            match self.lease(bytes) {
                Err(full @ ArenaError::Full { .. }) => {
                    if tokio::time::timeout_at(deadline.into(), returned).await.is_err() {
                        return Err(full);
                    }
                }
                result => return result,
            }
        }
    }

    /// The file that a peer maps.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Lease {
    /// Make the lease read-only and shareable.
    pub fn share(self) -> Buffer {
        Buffer::of_lease(self)
    }

    fn start(&self) -> usize {
        self.first_page as usize * PAGE_BYTES
    }

    /// Some of its bytes.
    ///
    /// # Safety
    /// They lie inside the lease, and are not written while the slice lives.
    unsafe fn slice(&self, start: usize, bytes: usize) -> &[u8] {
        debug_assert!(start + bytes <= self.bytes);
        // SAFETY: the lease lies inside the mapping; the rest is the caller's duty.
        unsafe { self.arena.0.memory.slice(self.start() + start, bytes) }
    }

    /// Some of its bytes, to write. A peer maps the arena read-only, and reads only what a message has lent to it.
    ///
    /// # Safety
    /// They lie inside the lease, and are neither read nor written elsewhere while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "parts of a strip divide its lease among themselves")]
    unsafe fn slice_mut(&self, start: usize, bytes: usize) -> &mut [u8] {
        debug_assert!(start + bytes <= self.bytes);
        // SAFETY: as in `slice`.
        unsafe { self.arena.0.memory.slice_mut(self.start() + start, bytes) }
    }
}

impl std::ops::Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: these pages are leased to `self` alone, and writing them needs `&mut self`. A strip, whose parts are written
        // apart, keeps its lease to itself and never borrows the whole of it.
        unsafe { self.slice(0, self.bytes) }
    }
}

impl std::ops::DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: these pages are leased to `self` alone, which is borrowed uniquely.
        unsafe { self.slice_mut(0, self.bytes) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.arena.0.pages.lock().give_back(self.first_page, self.pages);
        self.arena.0.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn leases_are_bounded_disjoint_and_return() {
        let arena = Arena::new(1 << 20).unwrap();
        let mut leases: Vec<Lease> = (0..4).map(|_| arena.lease(200 << 10).unwrap()).collect();
        for (number, lease) in (0_u8..).zip(&mut leases) {
            lease.fill(number);
        }
        for (number, lease) in (0_u8..).zip(&leases) {
            assert!(lease.iter().all(|&byte| byte == number));
        }
        assert_eq!(arena.held_bytes(), 4 * (200 << 10));
        let error = arena.lease(300 << 10).unwrap_err().to_string();
        assert!(error.contains("307200") && error.contains("819200"), "{error}");
        assert!(matches!(arena.lease(2 << 20), Err(ArenaError::TooLarge { .. })));
        leases.clear();
        assert_eq!(arena.held_bytes(), 0);
        assert_eq!(arena.lease(1 << 20).unwrap().len(), 1 << 20, "the whole arena is one piece again");
    }

    #[test]
    fn buffers_hold_their_lease_until_the_last_is_dropped() {
        let arena = Arena::new(1 << 20).unwrap();
        let mut lease = arena.lease(10_000).unwrap();
        lease[9_000] = 7;
        let buffer = lease.share();
        let part = buffer.slice(8_999..9_001);
        drop(buffer);
        assert_eq!(&part[..], [part[0], 7]);
        assert!(arena.held_bytes() > 0);
        drop(part);
        assert_eq!(arena.held_bytes(), 0);
    }

    #[test]
    fn a_lease_waits_for_room_until_its_deadline() {
        block_on(async {
            let arena = Arena::new(1 << 20).unwrap();
            let all = arena.lease(1 << 20).unwrap();
            let soon = Instant::now() + Duration::from_millis(5);
            assert!(matches!(arena.lease_by(1, soon).await, Err(ArenaError::Full { .. })));
            let later = Instant::now() + Duration::from_mins(1);
            let (lease, ()) = tokio::join!(arena.lease_by(1 << 20, later), async { drop(all) });
            assert_eq!(lease.unwrap().len(), 1 << 20);
        });
    }

    #[test]
    fn sizes_that_no_system_has_are_errors() {
        assert!(Arena::new(0).is_err());
        assert!(Arena::new(usize::MAX).is_err());
    }
}
