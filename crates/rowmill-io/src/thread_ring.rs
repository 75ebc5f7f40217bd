//! The ring of the current thread.

use std::cell::RefCell;
use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::file_device::BOUNCE_BYTES;
use crate::fork::once;
use crate::ring::{DEPTH_MAX, DEPTH_MIN, Deliver, Ring, Source};
use crate::{IoChoice, Process, Span, pread, ring};

/// Sum of the depths of the rings in this process.
static DEPTHS: AtomicUsize = AtomicUsize::new(0);

enum ThreadRing {
    NotYet,
    Ready(Box<Ring>, Permit),
    /// The kernel refused a ring, or the ring has failed.
    Refused,
}

thread_local! {
    static RING: RefCell<ThreadRing> = const { RefCell::new(ThreadRing::NotYet) };
}

/// How rings are set up on this machine, or why they are not available.
pub(crate) fn support() -> Result<&'static str, &'static str> {
    static SUPPORT: OnceLock<Result<String, String>> = OnceLock::new();
    let support = once(&SUPPORT, || match Ring::new(DEPTH_MAX) {
        Ok(ring) => Ok(ring.describe()),
        Err(error) => Err(format!("io_uring is refused: {error}")),
    });
    support.as_deref().map_err(String::as_str)
}

/// Most memory, in bytes, that each thread needs for device reads and writes, kept or temporary.
///
/// A read of one span above 64 KiB also needs the span's length during the call.
pub fn io_bytes_per_thread(choice: IoChoice) -> usize {
    let ring = match choice {
        IoChoice::Auto if support().is_ok() => ring::BYTES_PER_RING,
        IoChoice::Auto | IoChoice::Pread => 0,
    };
    ring + pread::BYTES_PER_THREAD + BOUNCE_BYTES
}

/// Read through this thread's ring. Returns false, with nothing delivered, if the thread has no ring or is
/// using it already (a `deliver` that reads).
pub(crate) fn read(source: &Source<'_>, spans: &[Span], deliver: Deliver<'_>) -> bool {
    // A thread that is ending has no ring any more.
    let read = RING.try_with(|cell| {
        let Ok(mut thread_ring) = cell.try_borrow_mut() else { return false };
        if let ThreadRing::Ready(ring, _) = &*thread_ring
            && !ring.is_usable()
        {
            *thread_ring = ThreadRing::NotYet;
        }
        let deep = spans.len() > DEPTH_MIN;
        match &mut *thread_ring {
            ThreadRing::NotYet => *thread_ring = make(deep),
            ThreadRing::Ready(ring, permit) if deep && ring.depth() < DEPTH_MAX => deepen(ring, permit),
            ThreadRing::Ready(..) | ThreadRing::Refused => {}
        }
        let ThreadRing::Ready(ring, _) = &mut *thread_ring else { return false };
        if ring.read(source, spans, deliver).is_err() {
            *thread_ring = ThreadRing::Refused;
        }
        true
    });
    read.unwrap_or(false)
}

/// A ring for this thread: a small one, unless its batches are large and this process may have another large one.
fn make(deep: bool) -> ThreadRing {
    if support().is_err() {
        return ThreadRing::Refused;
    }
    let permit = deep.then(|| Permit::take(DEPTH_MAX)).flatten().or_else(|| Permit::take(DEPTH_MIN));
    let Some(permit) = permit else { return ThreadRing::NotYet };
    match Ring::new(permit.depth) {
        Ok(ring) => ThreadRing::Ready(Box::new(ring), permit),
        Err(_) => ThreadRing::Refused,
    }
}

/// Replace a small ring by a large one, if this process may have another.
fn deepen(ring: &mut Box<Ring>, permit: &mut Permit) {
    if let Some(more) = Permit::take(DEPTH_MAX)
        && let Ok(large) = Ring::new(DEPTH_MAX)
    {
        (**ring, *permit) = (large, more);
    }
}

/// The right to a part of the reads that the rings of this process may have in flight together.
struct Permit {
    depth: usize,
    process: Process,
}

impl Permit {
    fn take(depth: usize) -> Option<Self> {
        let more = |sum| (sum + depth <= depths_max()).then_some(sum + depth);
        let taken = DEPTHS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Self { depth, process: Process::current() })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.process.is_current() {
            DEPTHS.fetch_sub(self.depth, Ordering::Relaxed);
        }
    }
}

/// In a forked child: the threads that had the rings of its parent do not run here.
pub(crate) fn forget_rings_of_parent() {
    DEPTHS.store(0, Ordering::Relaxed);
    ring::forget_reads_of_parent();
}

/// Limit of [`DEPTHS`], which bounds the memory of rings: as many large rings as twice the processors, at least 16, or four
/// times as many small ones. Further threads use `pread`.
fn depths_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    let rings = || 2 * std::thread::available_parallelism().map_or(1, NonZero::get).max(8);
    *once(&MAX, || DEPTH_MAX * rings())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::{BLOCK_BYTES, DirectoryVolume, Volume};

    /// The depth of this thread's ring.
    fn depth() -> Option<usize> {
        RING.with_borrow(|ring| match ring {
            ThreadRing::Ready(ring, _) => Some(ring.depth()),
            ThreadRing::NotYet | ThreadRing::Refused => None,
        })
    }

    /// Rings were all large once, so that the seventeenth thread on a small machine read one block after the other.
    #[test]
    fn threads_with_small_batches_share_the_memory_of_rings() {
        const THREADS: usize = 40;
        let folder = tempfile::tempdir().unwrap();
        let volume = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
        let device = volume.device("device", true).unwrap();
        device.write(0, &vec![5; 2 * (DEPTH_MIN + 1) * BLOCK_BYTES]).unwrap();
        let spans: Vec<Span> = (0..=DEPTH_MIN as u64)
            .map(|number| Span { offset: 2 * number * BLOCK_BYTES as u64, bytes: BLOCK_BYTES })
            .collect();
        let read = |spans: &[Span]| device.read(spans, &mut |_, result| assert_eq!(result.unwrap()[0], 5));
        if !volume.describe().starts_with("io_uring") {
            eprintln!("skipped: {}", volume.describe());
            return;
        }
        let all_read = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    read(&spans[..DEPTH_MIN]);
                    assert_eq!(depth(), Some(DEPTH_MIN));
                    all_read.wait();
                });
            }
        });
        read(&spans);
        assert_eq!(depth(), Some(DEPTH_MAX), "a large batch has a large ring");
        read(&spans[..1]);
        assert_eq!(depth(), Some(DEPTH_MAX));
        let permits: Vec<_> = std::iter::from_fn(|| Permit::take(DEPTH_MAX)).collect();
        // SAFETY: the child reads, compares and ends, in its only thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let rings_are_its_own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                read(&spans);
                assert_eq!((depth(), DEPTHS.load(Ordering::Relaxed)), (Some(DEPTH_MAX), DEPTH_MAX));
                drop(permits);
                assert_eq!(DEPTHS.load(Ordering::Relaxed), DEPTH_MAX);
            }));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(rings_are_its_own.is_err())) }
        }
        let mut status = -1;
        // SAFETY: waits for the child created above and writes its status to the pointer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has no ring of its own");
    }
}
