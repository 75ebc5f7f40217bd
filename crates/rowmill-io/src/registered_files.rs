//! The table of files registered with a ring: which slot holds which open file.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use io_uring::Submitter;

/// Slots of the table. A store has one device per group. More devices than slots replace each other, which
/// costs about 1 us per batch.
const SLOTS: usize = 32;

/// Number of devices that this process has closed. A change makes rings look for closed files in their
/// tables.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Shows whether a device is still open.
#[derive(Debug)]
pub(crate) struct Presence {
    open: Arc<()>,
    /// Declared after `open`, so it is dropped later: a thread that sees the new count also sees the device
    /// as closed.
    _count: CountClosed,
}

#[derive(Debug)]
struct CountClosed;

impl Presence {
    pub(crate) fn new() -> Self {
        Self { open: Arc::new(()), _count: CountClosed }
    }
}

impl Drop for CountClosed {
    fn drop(&mut self) {
        CLOSED.fetch_add(1, Ordering::Release);
    }
}

/// The table of one ring.
///
/// A registered file stays open while it is registered, even after its device is dropped. A ring unregisters
/// such files before its next read. Until then, the space of a removed file can stay allocated.
#[derive(Debug)]
pub(crate) struct RegisteredFiles {
    slots: [Weak<()>; SLOTS],
    victim: usize,
    closed_seen: u64,
}

impl RegisteredFiles {
    /// Register an empty table; `None` if the kernel does not support one.
    pub(crate) fn register(submitter: &Submitter<'_>) -> Option<Self> {
        submitter.register_files(&[-1; SLOTS]).ok()?;
        Some(Self {
            slots: std::array::from_fn(|_| Weak::new()),
            victim: 0,
            closed_seen: CLOSED.load(Ordering::Acquire),
        })
    }

    /// The slot of a file, which is registered if necessary; `None` if the kernel refuses.
    pub(crate) fn slot(
        &mut self,
        submitter: &Submitter<'_>,
        presence: &Presence,
        file: RawFd,
    ) -> Option<u32> {
        self.let_go_of_closed(submitter);
        let wanted = Arc::as_ptr(&presence.open);
        if let Some(slot) = self.slots.iter().position(|slot| slot.as_ptr() == wanted) {
            return Some(slot as u32);
        }
        let slot = self.slots.iter().position(|slot| slot.strong_count() == 0).unwrap_or_else(|| {
            self.victim = (self.victim + 1) % SLOTS;
            self.victim
        });
        submitter.register_files_update(slot as u32, &[file]).ok()?;
        self.slots[slot] = Arc::downgrade(&presence.open);
        Some(slot as u32)
    }

    fn let_go_of_closed(&mut self, submitter: &Submitter<'_>) {
        let closed = CLOSED.load(Ordering::Acquire);
        if closed == self.closed_seen {
            return;
        }
        self.closed_seen = closed;
        let never_used = Weak::<()>::new();
        for (slot, held) in self.slots.iter_mut().enumerate() {
            let taken = !held.ptr_eq(&never_used);
            if taken
                && held.strong_count() == 0
                && submitter.register_files_update(slot as u32, &[-1]).is_ok()
            {
                *held = Weak::new();
            }
        }
    }
}
