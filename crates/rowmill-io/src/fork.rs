//! Process-local resources, which a forked child must neither use nor release.
//!
//! A child of `fork` gets a copy of the memory and of every open file, but only the thread that forked. It
//! must not join threads that it does not have, take locks that one of them may have held, or write data that
//! its parent has buffered. It must not keep its parent's folder lock either: that lock belongs to the open
//! file, which parent and child share.
//!
//! Handlers of `pthread_atfork` do three things in the child before `fork` returns. They increment a fork
//! counter, so that comparing two numbers shows whether a value was made in this process. They close the child's
//! copy of every [`OwnFile`]. And they forget the rings of the parent's threads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

/// Number of forks between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

type Files = BTreeMap<u64, File>;

/// Every [`OwnFile`] of this process. Locked during a fork, so that the child inherits no open file that is
/// not in this map, and no value that [`once`] computes.
static FILES: Mutex<Files> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Guard of [`FILES`] while this thread forks.
    static WHILE_FORKING: RefCell<Option<MutexGuard<'static, Files>>> = const { RefCell::new(None) };
}

/// Identity of a process: tells it from its forked children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// The current process.
    ///
    /// # Panics
    /// When there is no memory for the fork handlers.
    pub fn current() -> Self {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: the handlers are functions of this library, which is never unloaded.
            let error =
                unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
            assert_eq!(error, 0, "pthread_atfork has no memory for the handlers");
        });
        Self(FORKS.load(Relaxed))
    }

    /// Whether this process is the running one, not a parent of it. Costs one load.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Relaxed)
    }
}

/// The value of a cell, computed at first use. Forks wait for the computation: a child would find one that never
/// ends. `compute` must not open an [`OwnFile`] or fill another cell.
pub(crate) fn once<T>(cell: &OnceLock<T>, compute: impl FnOnce() -> T) -> &T {
    cell.get().unwrap_or_else(|| {
        Process::current();
        let _no_fork = files();
        cell.get_or_init(compute)
    })
}

/// A value that is dropped only by the process that made it; a forked child leaks its copy.
///
/// Use it for values whose drop joins a thread, takes a lock or writes a buffer.
#[derive(Debug)]
pub struct ProcessLocal<T> {
    process: Process,
    value: ManuallyDrop<T>,
}

impl<T> ProcessLocal<T> {
    /// A value of the current process.
    pub fn new(value: T) -> Self {
        Self { process: Process::current(), value: ManuallyDrop::new(value) }
    }

    /// Whether the current process made the value.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.process.is_current()
    }
}

impl<T> Deref for ProcessLocal<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ProcessLocal<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for ProcessLocal<T> {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: the value is dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

/// An open file, locked or not. Forked children close their copy and do not hold the lock.
#[derive(Debug)]
pub(crate) struct OwnFile {
    process: Process,
    number: u64,
}

impl OwnFile {
    /// Open a file. Forks wait until `open` returns.
    pub(crate) fn open<E>(open: impl FnOnce() -> Result<File, E>) -> Result<Self, E> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let process = Process::current();
        let mut files = files();
        let file = open()?;
        let number = NEXT.fetch_add(1, Relaxed);
        files.insert(number, file);
        Ok(Self { process, number })
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let file = files().remove(&self.number);
        // A child forked a moment ago may not have closed its copy yet; without the unlock, the lock would
        // last until then.
        if let Some(file) = file
            && self.process.is_current()
        {
            // Unlocking a file that has no lock has no effect.
            let _ = file.unlock();
        }
    }
}

fn files() -> MutexGuard<'static, Files> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before() {
    // A thread that is ending has no thread-local variables any more; its child may then keep a file open.
    let _ = WHILE_FORKING.try_with(|held| *held.borrow_mut() = Some(files()));
}

extern "C" fn after_in_parent() {
    let _ = WHILE_FORKING.try_with(|held| held.borrow_mut().take());
}

extern "C" fn after_in_child() {
    FORKS.fetch_add(1, Relaxed);
    crate::thread_ring::forget_rings_of_parent();
    let _ = WHILE_FORKING.try_with(|held| {
        if let Some(mut files) = held.borrow_mut().take() {
            // Close the files. Do not unlock them: that would release the parent's lock.
            files.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_child_finds_a_value_that_was_being_computed_while_it_was_forked() {
        static CELL: OnceLock<u32> = OnceLock::new();
        static BEGUN: AtomicBool = AtomicBool::new(false);
        let computing = std::thread::spawn(|| {
            once(&CELL, || {
                BEGUN.store(true, Relaxed);
                std::thread::sleep(Duration::from_millis(50));
                7
            })
        });
        while !BEGUN.load(Relaxed) {
            std::thread::yield_now();
        }
        // SAFETY: the child compares and ends, in its only thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(CELL.get() != Some(&7))) }
        }
        let mut status = -1;
        // SAFETY: waits for the child created above and writes its status to the pointer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the cell of the child is empty");
        assert_eq!(computing.join().unwrap(), &7);
    }
}
