//! The queue in front of a half of a model, and the time that the half takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::Histogram;
use crate::Refusal;

/// Why a half refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its deadline could not be met when it arrived, or had passed at its turn.
    Late,
    /// It would have made an admitted request late.
    WouldDelay,
    /// Earlier batches took longer than predicted.
    Delayed,
    /// As many requests waited as may.
    QueueFull,
    /// It has more rows than a batch may.
    TooManyRows,
    /// The arena had no room for its tensors.
    MemoryFull,
    /// The process ends.
    Ending,
}

/// Counters of one half of a model.
#[derive(Debug, Default)]
pub(crate) struct HalfMetrics {
    /// Time in the queue.
    pub(crate) wait: Histogram,
    /// Time in the half.
    pub(crate) run: Histogram,
    waiting: AtomicU64,
    cpu_ns: AtomicU64,
    /// Batches that may run at once; 0 for a half that is a plan.
    batches: AtomicUsize,
    refused: [AtomicU64; Reason::ALL.len()],
}

/// A request in the queue of a half, then in the half. Dropped in the queue, it waits no more.
#[derive(Debug)]
pub(crate) struct Turn {
    half: Arc<HalfMetrics>,
    since: Instant,
    is_waiting: bool,
}

impl Reason {
    /// All reasons.
    pub(crate) const ALL: [Self; 7] = [
        Self::Late,
        Self::WouldDelay,
        Self::Delayed,
        Self::QueueFull,
        Self::TooManyRows,
        Self::MemoryFull,
        Self::Ending,
    ];

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::WouldDelay => "would_delay_another",
            Self::Delayed => "delayed",
            Self::QueueFull => "queue_full",
            Self::TooManyRows => "too_many_rows",
            Self::MemoryFull => "memory_full",
            Self::Ending => "ending",
        }
    }
}

impl From<Refusal> for Reason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full { .. } => Self::QueueFull,
            Refusal::TooLarge { .. } => Self::TooManyRows,
            Refusal::Late { .. } => Self::Late,
            Refusal::WouldDelay { .. } => Self::WouldDelay,
            Refusal::Delayed { .. } => Self::Delayed,
            Refusal::Closed => Self::Ending,
        }
    }
}

impl HalfMetrics {
    /// A request joins the queue.
    pub(crate) fn queue(self: &Arc<Self>) -> Turn {
        self.waiting.fetch_add(1, Relaxed);
        Turn { half: Arc::clone(self), since: Instant::now(), is_waiting: true }
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// Count CPU time of a thread that runs a program of torch.
    pub(crate) fn add_cpu(&self, taken: Duration) {
        self.cpu_ns.fetch_add(u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// This number of batches of a program of torch may run at once now.
    pub(crate) fn set_batches(&self, batches: usize) {
        self.batches.store(batches, Relaxed);
    }

    /// Batches that may run at once now; 0 for a half that is a plan.
    pub(crate) fn batches(&self) -> usize {
        self.batches.load(Relaxed)
    }

    /// That time so far, in seconds; 0 for a half that is a plan.
    pub(crate) fn cpu_s(&self) -> f64 {
        self.cpu_ns.load(Relaxed) as f64 * 1e-9
    }

    /// Count a refusal.
    pub(crate) fn refuse(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Relaxed);
    }

    /// Requests refused for a reason.
    pub(crate) fn refused(&self, reason: Reason) -> u64 {
        self.refused[reason as usize].load(Relaxed)
    }
}

impl Turn {
    /// The request leaves the queue.
    pub(crate) fn begin(&mut self) {
        let now = Instant::now();
        self.half.wait.observe(now - self.since);
        self.half.waiting.fetch_sub(1, Relaxed);
        (self.since, self.is_waiting) = (now, false);
    }

    /// The half has its result.
    pub(crate) fn end(self) {
        self.half.run.observe(self.since.elapsed());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_waiting {
            self.half.waiting.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_waits_until_it_begins_or_is_dropped() {
        let half = Arc::new(HalfMetrics::default());
        let (mut first, second) = (half.queue(), half.queue());
        assert_eq!(half.waiting(), 2);
        first.begin();
        drop(second);
        assert_eq!((half.waiting(), half.wait.count(), half.run.count()), (0, 1, 0));
        first.end();
        assert_eq!((half.waiting(), half.wait.count(), half.run.count()), (0, 1, 1));
    }

    #[test]
    fn reasons_are_numbered_in_their_order() {
        let half = HalfMetrics::default();
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            half.refuse(reason);
            assert_eq!(half.refused(reason), 1);
        }
    }
}
