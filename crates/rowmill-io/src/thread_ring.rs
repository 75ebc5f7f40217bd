//! The ring of the current thread.

use std::cell::RefCell;
use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::file_device::BOUNCE_BYTES;
use crate::ring::{Deliver, Ring, Source};
use crate::{IoChoice, Span, pread, ring};

/// Number of rings in this process.
static RINGS: AtomicUsize = AtomicUsize::new(0);

enum ThreadRing {
    NotYet,
    Ready(Box<Ring>, RingPermit),
    /// The kernel refused a ring, or the ring has failed.
    Refused,
}

thread_local! {
    static RING: RefCell<ThreadRing> = const { RefCell::new(ThreadRing::NotYet) };
}

/// How rings are set up on this machine, or why they are not available.
pub(crate) fn support() -> Result<&'static str, &'static str> {
    static SUPPORT: OnceLock<Result<String, String>> = OnceLock::new();
    let support = SUPPORT.get_or_init(|| match Ring::new() {
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
        if matches!(*thread_ring, ThreadRing::NotYet) {
            *thread_ring = make();
        }
        let ThreadRing::Ready(ring, _) = &mut *thread_ring else { return false };
        if ring.read(source, spans, deliver).is_err() {
            *thread_ring = ThreadRing::Refused;
        }
        true
    });
    read.unwrap_or(false)
}

fn make() -> ThreadRing {
    if support().is_err() {
        return ThreadRing::Refused;
    }
    let Some(permit) = RingPermit::take() else { return ThreadRing::NotYet };
    match Ring::new() {
        Ok(ring) => ThreadRing::Ready(Box::new(ring), permit),
        Err(_) => ThreadRing::Refused,
    }
}

/// The right to one of the rings that this process may have.
struct RingPermit;

impl RingPermit {
    fn take() -> Option<Self> {
        let permit = (RINGS.fetch_add(1, Ordering::Relaxed) < rings_max()).then(|| Self);
        if permit.is_none() {
            RINGS.fetch_sub(1, Ordering::Relaxed);
        }
        permit
    }
}

impl Drop for RingPermit {
    fn drop(&mut self) {
        RINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Most rings of this process: twice its processors, at least 16. More rings add memory but no speed; further
/// threads use `pread`.
fn rings_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| 2 * std::thread::available_parallelism().map_or(1, NonZero::get).max(8))
}
