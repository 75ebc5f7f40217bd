//! `Mutex`, `RwLock` and `Condvar` of the standard library, without poisoning.
//!
//! All their state lies in the lock itself, so a forked child can use the locks that it makes. Locks of
//! `parking_lot` keep the queues of waiting threads in one table of the process. A child inherits the entries of
//! threads that it does not have; its own threads reuse their memory, and wake-ups are lost.

use std::sync::{
    self, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};
use std::time::Instant;

/// A mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// A reader-writer lock.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// Wait for a change of the value that a [`Mutex`] guards.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl<T> Mutex<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Acquire the lock; blocks.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        free_soon(|| self.try_lock()).unwrap_or_else(|| self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        free(self.0.try_lock())
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> RwLock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Acquire shared access; blocks.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        free_soon(|| self.try_read()).unwrap_or_else(|| self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Acquire exclusive access; blocks.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        free_soon(|| self.try_write())
            .unwrap_or_else(|| self.0.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Shared access if no thread has or awaits exclusive access.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        free(self.0.try_read())
    }

    /// Exclusive access if the lock is free.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        free(self.0.try_write())
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condvar {
    /// A condition variable without waiters.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Release the lock until notified.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Release the lock until notified or until `deadline`; false after the deadline.
    pub fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        let (guard, result) = self.0.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
        (guard, !result.timed_out())
    }

    /// Wake one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wake all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Try again a few times, with longer and longer pauses. Most locks are held for less than it takes to sleep.
#[inline]
fn free_soon<G>(attempt: impl Fn() -> Option<G>) -> Option<G> {
    attempt().or_else(|| retry(&attempt))
}

#[cold]
fn retry<G>(attempt: &impl Fn() -> Option<G>) -> Option<G> {
    for round in 0..10 {
        if round < 3 {
            (0..2 << round).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::yield_now();
        }
        if let Some(guard) = attempt() {
            return Some(guard);
        }
    }
    None
}

#[inline]
fn free<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
