//! What belongs to one process, so that a forked child of it does no harm.
//!
//! A child of `fork` gets a copy of the memory and of every open file, but only the thread that forked. It must not
//! join threads that it does not have, take locks that one of them may have held, write what its parent has buffered,
//! or keep the lock of its parent's folder: that lock belongs to the open file, which parent and child share.
//!
//! Handlers of `pthread_atfork` do two things in the child before it goes on. They count the fork, so that comparing
//! two numbers tells whether a value was made in this process. And they close the child's copy of every [`OwnFile`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Forks between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

type Files = BTreeMap<u64, File>;

/// Every [`OwnFile`] of this process. Locked across a fork, so that the child gets no copy that is missing here.
static FILES: Mutex<Files> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The lock of [`FILES`] while this thread forks.
    static WHILE_FORKING: RefCell<Option<MutexGuard<'static, Files>>> = const { RefCell::new(None) };
}

/// A process, to tell it from its forked children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// This process.
    ///
    /// # Panics
    /// When the system has no memory for the handlers.
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

    /// Whether this is the process that is running, not one that it was forked from. Costs one load.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Relaxed)
    }
}

/// A value that is dropped only by the process that made it; a forked child leaks its copy.
///
/// For what does something when it is dropped: joins a thread, takes a lock, writes a buffer.
#[derive(Debug)]
pub struct ProcessLocal<T> {
    process: Process,
    value: ManuallyDrop<T>,
}

impl<T> ProcessLocal<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { process: Process::current(), value: ManuallyDrop::new(value) }
    }

    /// Whether this process made the value.
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
            // SAFETY: the value is dropped here alone, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

/// An open file, locked or not, that forked children neither keep open nor keep locked.
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
        // The lock outlives this file while a child that was forked a moment ago has yet to close its copy.
        if let Some(file) = file
            && self.process.is_current()
        {
            // A file without a lock is unlocked without effect.
            let _ = file.unlock();
        }
    }
}

fn files() -> MutexGuard<'static, Files> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before() {
    // A thread that is ending has no such variable any more: its child may then keep a file open.
    let _ = WHILE_FORKING.try_with(|held| *held.borrow_mut() = Some(files()));
}

extern "C" fn after_in_parent() {
    let _ = WHILE_FORKING.try_with(|held| held.borrow_mut().take());
}

extern "C" fn after_in_child() {
    FORKS.fetch_add(1, Relaxed);
    let _ = WHILE_FORKING.try_with(|held| {
        if let Some(mut files) = held.borrow_mut().take() {
            // Closes them. To unlock the folder's lock would unlock the parent's.
            files.clear();
        }
    });
}
