//! `Mutex`, `RwLock` and `Condvar` with a rank as a type parameter.
//!
//! They are used like the [`unranked`] ones. `Mutex<T, R>` and `RwLock<T, R>` name their rank `R`, so every
//! declaration of a lock decides its position in the lock order.

use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync;
use std::time::Instant;

use crate::rank::{LockId, Rank, Token};
use crate::unranked;

/// A mutual exclusion lock of rank `R`.
pub struct Mutex<T, R> {
    number: Number,
    rank: PhantomData<fn() -> R>,
    inner: unranked::Mutex<T>,
}

/// A reader-writer lock of rank `R`.
pub struct RwLock<T, R> {
    number: Number,
    rank: PhantomData<fn() -> R>,
    inner: unranked::RwLock<T>,
}

/// Distinguishes locks of one rank.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    #[cfg(debug_assertions)]
    number: u32,
}

impl Number {
    fn new(number: u32) -> Self {
        #[cfg(debug_assertions)]
        return Self { number };
        #[cfg(not(debug_assertions))]
        {
            let _ = number;
            Self {}
        }
    }

    #[inline]
    fn lock_id<R: Rank>(self) -> LockId {
        #[cfg(debug_assertions)]
        return LockId::of::<R>(self.number);
        #[cfg(not(debug_assertions))]
        LockId::of::<R>(0)
    }
}

/// Exclusive access to the value of a [`Mutex`].
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct MutexGuard<'a, T> {
    inner: sync::MutexGuard<'a, T>,
    token: Token,
}

/// Shared access to the value of a [`RwLock`].
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwLockReadGuard<'a, T> {
    inner: sync::RwLockReadGuard<'a, T>,
    _token: Token,
}

/// Exclusive access to the value of a [`RwLock`].
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T> {
    inner: sync::RwLockWriteGuard<'a, T>,
    _token: Token,
}

impl<T, R: Rank> Mutex<T, R> {
    /// A lock with number 0: no thread may hold it together with another lock of the same rank and number.
    pub fn new(value: T) -> Self {
        Self::numbered(0, value)
    }

    /// A lock with a number, which orders locks of one rank.
    pub fn numbered(number: u32, value: T) -> Self {
        Self { number: Number::new(number), rank: PhantomData, inner: unranked::Mutex::new(value) }
    }

    /// Acquire the lock; blocks.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let token = Token::want(self.number.lock_id::<R>());
        let inner = self.inner.lock();
        MutexGuard { inner, token: token.taken() }
    }
}

impl<T, R: Rank> RwLock<T, R> {
    /// A lock with number 0: no thread may hold it together with another lock of the same rank and number.
    pub fn new(value: T) -> Self {
        Self::numbered(0, value)
    }

    /// A lock with a number, which orders locks of one rank.
    pub fn numbered(number: u32, value: T) -> Self {
        Self { number: Number::new(number), rank: PhantomData, inner: unranked::RwLock::new(value) }
    }

    /// Acquire shared access; blocks.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let token = Token::want(self.number.lock_id::<R>());
        let inner = self.inner.read();
        RwLockReadGuard { inner, _token: token.taken() }
    }

    /// Acquire exclusive access; blocks.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let token = Token::want(self.number.lock_id::<R>());
        let inner = self.inner.write();
        RwLockWriteGuard { inner, _token: token.taken() }
    }

    /// Shared access if available without blocking.
    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let token = Token::want(self.number.lock_id::<R>());
        if let Some(inner) = self.inner.try_read() {
            return Some(RwLockReadGuard { inner, _token: token.taken() });
        }
        token.give_up();
        None
    }

    /// Exclusive access if available without blocking.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let token = Token::want(self.number.lock_id::<R>());
        if let Some(inner) = self.inner.try_write() {
            return Some(RwLockWriteGuard { inner, _token: token.taken() });
        }
        token.give_up();
        None
    }
}

/// Wait for a change of the value that a [`Mutex`] guards.
#[derive(Debug, Default)]
pub struct Condvar(unranked::Condvar);

impl Condvar {
    /// A condition variable without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Release the lock until notified.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let MutexGuard { inner, token } = guard;
        MutexGuard { inner: self.0.wait(inner), token }
    }

    /// Release the lock until notified or until `deadline`; false after the deadline.
    pub fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        let MutexGuard { inner, token } = guard;
        let (inner, in_time) = self.0.wait_until(inner, deadline);
        (MutexGuard { inner, token }, in_time)
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

impl<T: Default, R: Rank> Default for Mutex<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Default, R: Rank> Default for RwLock<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Debug, R> Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: Debug, R> Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::*;
    use crate::Pool;

    struct Outer;
    impl Rank for Outer {
        const LEVEL: u8 = 1;
        const NAME: &'static str = "outer";
    }

    struct Inner;
    impl Rank for Inner {
        const LEVEL: u8 = 2;
        const NAME: &'static str = "inner";
    }

    type Locks = (Mutex<(), Outer>, Vec<RwLock<(), Inner>>);

    fn locks() -> Locks {
        (Mutex::default(), (0..3).map(|number| RwLock::numbered(number, ())).collect())
    }

    fn panic_of(work: impl FnOnce()) -> String {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).expect_err("it must panic");
        panic.downcast_ref::<String>().expect("a message").clone()
    }

    #[test]
    fn locks_in_order_can_be_taken_and_released() {
        let (outer, inner) = locks();
        for _ in 0..2 {
            let _outer = outer.lock();
            let guards: Vec<_> = inner.iter().map(RwLock::read).collect();
            assert_eq!(guards.len(), 3);
        }
    }

    #[test]
    fn a_lock_out_of_order_panics_with_both_names() {
        let (outer, inner) = locks();
        let held = inner[1].read();
        let message = panic_of(|| drop(outer.lock()));
        assert_eq!(message, "lock order: outer 0 (rank 1) is wanted while inner 1 (rank 2) is held");
        panic_of(|| drop(inner[0].write()));
        panic_of(|| drop(inner[1].try_read()));
        drop(inner[2].read());
        drop(held);
        drop(outer.lock());
    }

    #[test]
    fn a_task_must_not_take_a_lock_that_its_caller_holds() {
        let (_, inner) = locks();
        let pool = Pool::new(4).unwrap();
        let _held = inner[1].read();
        pool.for_each(64, |_| drop(inner[2].read()));
        let message = panic_of(|| pool.for_each(64, |_| drop(inner[1].read())));
        assert_eq!(message, "lock order: inner 1 (rank 2) is wanted while inner 1 (rank 2) is held");
    }

    #[test]
    fn the_report_names_holder_and_waiter() {
        let (outer, _) = locks();
        let held = outer.lock();
        std::thread::scope(|scope| {
            let waiter = std::thread::Builder::new().name("waiter".into());
            waiter.spawn_scoped(scope, || drop(outer.lock())).unwrap();
            while !crate::report().contains("waiter: holds [], waits for outer 0") {
                std::thread::yield_now();
            }
            assert!(crate::report().contains("holds [outer 0 (rank 1)]"));
            drop(held);
        });
    }
}
