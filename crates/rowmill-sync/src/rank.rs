//! Lock ranks: the order in which locks are taken, and a record of which thread holds which locks.
//!
//! Every kind of lock has a rank, a type that implements [`Rank`]. In builds with `debug_assertions`, each
//! thread keeps a list of the locks it holds. Taking a lock whose rank and number are not above all of these
//! panics before the thread blocks. Threads that follow one order cannot deadlock.

/// A kind of lock.
pub trait Rank {
    /// Position in the lock order: locks are taken in ascending order of levels.
    const LEVEL: u8;
    /// The lock's name in panics and in [`report`].
    const NAME: &'static str;
}

#[cfg(debug_assertions)]
pub(crate) use checked::{Inherited, LockId, Token};
#[cfg(not(debug_assertions))]
pub(crate) use unchecked::{Inherited, LockId, Token};

/// One line per thread that holds or waits for a lock, for test failures and watchdogs.
///
/// Builds without `debug_assertions` record no locks; the text says so.
pub fn report() -> String {
    #[cfg(debug_assertions)]
    return checked::report();
    #[cfg(not(debug_assertions))]
    return "built without debug assertions: locks are not recorded\n".into();
}

/// Run `work` as if on another thread, for simulations without threads: the locks of this thread do not count
/// as held. `work` must not take a lock that this thread holds exclusively, nor take exclusively a lock that
/// it holds.
pub fn as_another_thread<T>(work: impl FnOnce() -> T) -> T {
    Inherited::none().run_alone(work)
}

#[cfg(debug_assertions)]
mod checked {
    use std::cell::OnceCell;
    use std::fmt::{self, Display, Formatter, Write};
    use std::sync::{Arc, MutexGuard, Weak};
    use std::time::Duration;

    use super::Rank;
    use crate::unranked::Mutex;

    /// Identity of a lock, ordered as all locks are.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct LockId {
        level: u8,
        number: u32,
        name: &'static str,
    }

    impl LockId {
        pub(crate) fn of<R: Rank>(number: u32) -> Self {
            Self { level: R::LEVEL, number, name: R::NAME }
        }

        fn is_before(self, other: Self) -> bool {
            (self.level, self.number) < (other.level, other.number)
        }
    }

    impl Display for LockId {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            write!(f, "{} {} (rank {})", self.name, self.number, self.level)
        }
    }

    /// The locks of one thread.
    #[derive(Debug, Default)]
    struct Thread {
        name: String,
        /// Locks held by the caller of the pool task that this thread runs.
        inherited: Vec<LockId>,
        held: Vec<LockId>,
        wanted: Option<LockId>,
    }

    type Shared = Arc<Mutex<Thread>>;

    static THREADS: Mutex<Vec<Weak<Mutex<Thread>>>> = Mutex::new(Vec::new());

    thread_local! {
        static THREAD: OnceCell<Shared> = const { OnceCell::new() };
    }

    /// The records of all threads. `None` when the list stays locked, as in a process that was forked while
    /// another thread held it.
    fn threads() -> Option<MutexGuard<'static, Vec<Weak<Mutex<Thread>>>>> {
        (0..1000).find_map(|_| {
            let threads = THREADS.try_lock();
            if threads.is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            threads
        })
    }

    /// Access the record of this thread. Returns `None` while the thread's own storage is being destroyed.
    fn with_thread<T>(work: impl FnOnce(&mut Thread) -> T) -> Option<T> {
        THREAD
            .try_with(|thread| {
                let thread = thread.get_or_init(|| {
                    let current = std::thread::current();
                    let name = current.name().map_or_else(|| format!("{:?}", current.id()), str::to_owned);
                    let thread = Arc::new(Mutex::new(Thread { name, ..Thread::default() }));
                    if let Some(mut threads) = threads() {
                        threads.retain(|thread| thread.strong_count() > 0);
                        threads.push(Arc::downgrade(&thread));
                    }
                    thread
                });
                work(&mut thread.lock())
            })
            .ok()
    }

    /// A lock that this thread holds or is about to take.
    #[derive(Debug)]
    pub(crate) struct Token(LockId);

    impl Token {
        /// Check that the lock may be taken now.
        ///
        /// # Panics
        /// When this thread, or the caller of its pool task, holds a lock that is not below this one in the
        /// order.
        pub(crate) fn want(lock_id: LockId) -> Self {
            let conflict = with_thread(|thread| {
                thread.wanted = Some(lock_id);
                thread.inherited.iter().chain(&thread.held).copied().find(|held| !held.is_before(lock_id))
            });
            if let Some(held) = conflict.flatten() {
                with_thread(|thread| thread.wanted = None);
                panic!("lock order: {lock_id} is wanted while {held} is held");
            }
            Self(lock_id)
        }

        /// Record that the lock was taken.
        pub(crate) fn taken(self) -> Self {
            with_thread(|thread| {
                thread.wanted = None;
                thread.held.push(self.0);
            });
            self
        }

        /// Record that a `try_` call did not get the lock.
        pub(crate) fn give_up(self) {
            with_thread(|thread| thread.wanted = None);
            std::mem::forget(self);
        }
    }

    impl Drop for Token {
        fn drop(&mut self) {
            release(self.0);
        }
    }

    fn release(lock_id: LockId) {
        with_thread(|thread| {
            if let Some(index) = thread.held.iter().rposition(|held| *held == lock_id) {
                thread.held.remove(index);
            }
        });
    }

    /// Restores a list of this thread when dropped, also after a panic.
    struct Restore(fn(&mut Thread, Vec<LockId>), Vec<LockId>);

    impl Drop for Restore {
        fn drop(&mut self) {
            with_thread(|thread| self.0(thread, std::mem::take(&mut self.1)));
        }
    }

    /// The locks that a caller of the pool holds. Its tasks count as holding them too.
    #[derive(Debug)]
    pub(crate) struct Inherited(Vec<LockId>);

    impl Inherited {
        /// The locks that this thread holds now.
        pub(crate) fn of_this_thread() -> Self {
            let all = |thread: &mut Thread| thread.inherited.iter().chain(&thread.held).copied().collect();
            Self(with_thread(all).unwrap_or_default())
        }

        /// Run a task of that caller.
        pub(crate) fn run<T>(&self, task: impl FnOnce() -> T) -> T {
            let before = with_thread(|thread| std::mem::replace(&mut thread.inherited, self.0.clone()));
            let _restore = Restore(|thread, before| thread.inherited = before, before.unwrap_or_default());
            task()
        }

        /// A caller that holds no locks.
        pub(crate) fn none() -> Self {
            Self(Vec::new())
        }

        /// Like [`Inherited::run`], ignoring the locks of this thread.
        pub(crate) fn run_alone<T>(&self, task: impl FnOnce() -> T) -> T {
            let held = with_thread(|thread| std::mem::take(&mut thread.held));
            let _restore = Restore(|thread, before| thread.held = before, held.unwrap_or_default());
            self.run(task)
        }

        /// Check that this thread may wait for other threads.
        ///
        /// # Panics
        /// When it holds a lock.
        pub(crate) fn refuse_to_wait(at: &str) {
            let held = Self::of_this_thread().0.first().copied();
            if let Some(held) = held {
                panic!("lock order: a thread waits at {at} while {held} is held");
            }
        }
    }

    pub(super) fn report() -> String {
        let mut text = String::new();
        for thread in threads().iter().flat_map(|threads| threads.iter()).filter_map(Weak::upgrade) {
            let thread = thread.lock();
            if thread.held.is_empty() && thread.wanted.is_none() && thread.inherited.is_empty() {
                continue;
            }
            let list =
                |locks: &[LockId]| locks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let _ = write!(text, "{}: holds [{}]", thread.name, list(&thread.held));
            if !thread.inherited.is_empty() {
                let _ = write!(text, ", its caller holds [{}]", list(&thread.inherited));
            }
            if let Some(wanted) = thread.wanted {
                let _ = write!(text, ", waits for {wanted}");
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(not(debug_assertions))]
mod unchecked {
    use super::Rank;

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct LockId;

    impl LockId {
        #[inline]
        pub(crate) fn of<R: Rank>(_: u32) -> Self {
            Self
        }
    }

    #[derive(Debug)]
    pub(crate) struct Token;

    impl Token {
        #[inline]
        pub(crate) fn want(_: LockId) -> Self {
            Self
        }

        #[inline]
        pub(crate) fn taken(self) -> Self {
            self
        }

        #[inline]
        pub(crate) fn give_up(self) {}
    }

    #[derive(Debug)]
    pub(crate) struct Inherited;

    impl Inherited {
        #[inline]
        pub(crate) fn of_this_thread() -> Self {
            Self
        }

        #[inline]
        pub(crate) fn run<T>(&self, task: impl FnOnce() -> T) -> T {
            task()
        }

        #[inline]
        pub(crate) fn none() -> Self {
            Self
        }

        #[inline]
        pub(crate) fn run_alone<T>(&self, task: impl FnOnce() -> T) -> T {
            task()
        }

        #[inline]
        pub(crate) fn refuse_to_wait(_: &str) {}
    }
}
