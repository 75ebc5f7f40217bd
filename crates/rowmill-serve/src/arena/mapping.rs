//! Memory mapped from a sealed memfd.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// With these the file keeps its size for ever, so reading a mapping of it cannot fault.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A mapping of a whole file.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value alone; who may read or write which part is the duty of the callers of
// `slice` and `slice_mut`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A memory file of `bytes` that can neither shrink nor grow.
pub(crate) fn sealed_file(bytes: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; the call has no other requirement.
    let descriptor = checked(unsafe { libc::memfd_create(c"rowmill-arena".as_ptr(), flags) })?;
    // SAFETY: the descriptor was just made and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: plain system calls on a descriptor that is ours.
    checked(unsafe { libc::ftruncate(file.as_raw_fd(), length) })?;
    // SAFETY: as above.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(file)
}

/// Size of a file that a peer sent; an error unless it is sealed as [`sealed_file`] does.
pub(crate) fn sealed_file_bytes(file: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: a plain system call on a borrowed descriptor.
    let seals = checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
    if seals & SEALS != SEALS {
        return Err(io::Error::other("the peer's memory file is not sealed against changes of its size"));
    }
    // SAFETY: `stat` is plain data, for which zeros are a value, and the call fills it.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        checked(libc::fstat(file.as_raw_fd(), &raw mut stat))?;
        stat
    };
    usize::try_from(stat.st_size).map_err(io::Error::other)
}

impl Mapping {
    /// Map `bytes` of `file` to read and write.
    pub(crate) fn writable(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        Self::map(file, bytes, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Map `bytes` of `file` to read.
    pub(crate) fn readable(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        Self::map(file, bytes, libc::PROT_READ)
    }

    fn map(file: BorrowedFd<'_>, bytes: usize, access: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the system chooses touches no memory of ours.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("the system maps nothing at address 0 unasked");
        Ok(Self { start, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// `bytes` bytes from `offset` on.
    ///
    /// # Safety
    /// They lie inside the mapping, and are not written while the slice lives.
    pub(crate) unsafe fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        debug_assert!(offset + bytes <= self.bytes);
        // SAFETY: the file keeps its size, so the mapping is readable; the rest is the caller's duty.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), bytes) }
    }

    /// `bytes` bytes from `offset` on, to write.
    ///
    /// # Safety
    /// They lie inside the mapping, which is writable, and are neither read nor written elsewhere while the slice
    /// lives.
    #[expect(clippy::mut_from_ref, reason = "leases divide the mapping among themselves")]
    pub(crate) unsafe fn slice_mut(&self, offset: usize, bytes: usize) -> &mut [u8] {
        debug_assert!(offset + bytes <= self.bytes);
        // SAFETY: as in `slice`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and size, and no slice outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let file = sealed_file(8192).unwrap();
        assert_eq!(sealed_file_bytes(file.as_fd()).unwrap(), 8192);
        let writer = Mapping::writable(file.as_fd(), 8192).unwrap();
        let reader = Mapping::readable(file.as_fd(), 8192).unwrap();
        // SAFETY: one slice at a time, inside the mappings.
        unsafe {
            writer.slice_mut(4095, 2).copy_from_slice(&[3, 4]);
            assert_eq!(reader.slice(4095, 2), [3, 4]);
        }
    }

    #[test]
    fn files_that_could_shrink_are_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert!(sealed_file_bytes(file.as_fd()).is_err());
    }
}
