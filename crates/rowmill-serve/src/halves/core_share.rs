//! How the cores of a process are shared by batches and lookups.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::core_binding::CoreBinding;
use super::lookup_threads::LookupLimit;
use crate::BatchPart;
use crate::row_source::RowSource;

/// Rows that lookups may read from a disk between two decisions, while their number at once has a limit. If each takes a
/// millisecond, they stop lookups for a tenth of the time.
const COLD_READS_MAX: u64 = 100;

/// Decides how many batches and lookups run at once: as many as need cores.
///
/// More batches at once take cores from the sockets and lookups that feed them, and each batch joins fewer requests. More lookups
/// at once take cores from the batches. Lookups that wait for a disk or a storage node need no core, so they have no limit.
#[derive(Debug)]
pub(crate) struct CoreShare {
    cores: usize,
    lookups: LookupLimit,
    /// Where the rows of all models are.
    rows: Mutex<Vec<RowSource>>,
    binding: CoreBinding,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The part of the batches of all programs.
    part: BatchPart,
    /// At the last decision.
    cold_reads: u64,
}

impl CoreShare {
    /// Share this number of cores.
    pub(crate) fn new(cores: usize, lookups: LookupLimit) -> Self {
        Self { cores, lookups, rows: Mutex::default(), binding: CoreBinding::new(), state: Mutex::default() }
    }

    /// Lookups read these rows.
    pub(crate) fn add_rows(&self, rows: &RowSource) {
        self.rows.lock().push(rows.clone());
    }

    /// A batch of some program ended `now` that used `taken` of CPU time: decide again how many lookups run at once.
    pub(super) fn add_batch(&self, now: Instant, taken: Duration) {
        let mut state = self.state.lock();
        let Some(part) = state.part.add(now, taken) else { return };
        let cold_reads = self.cold_reads();
        let before = std::mem::replace(&mut state.cold_reads, cold_reads.unwrap_or(0));
        drop(state);
        let new_reads = cold_reads.map(|reads| reads.saturating_sub(before));
        self.lookups.set(self.lookups_of(part, new_reads));
        self.binding.decide(now, self.batches(part), self.cores);
    }

    /// This thread asks for batches.
    pub(super) fn add_batch_thread(&self) {
        self.binding.add_batch_thread();
    }

    /// There was no batch for a thread that has waited for one until `now`.
    pub(super) fn rest(&self, now: Instant) {
        self.binding.rest(now);
    }

    /// How many batches of a program run at once that uses this part of the CPU time.
    pub(super) fn batches(&self, part: f64) -> usize {
        self.clamp((self.cores as f64 * part).round())
    }

    /// How many lookups run at once beside batches that use this part of the CPU time: what is left, rounded up. `None` where
    /// lookups wait for rows, of which they have read `cold_reads` from disks.
    fn lookups_of(&self, part: f64, cold_reads: Option<u64>) -> Option<usize> {
        let is_waiting = cold_reads.is_none_or(|reads| reads > COLD_READS_MAX);
        (!is_waiting).then(|| self.clamp((self.cores as f64 * (1.0 - part)).ceil()))
    }

    fn clamp(&self, cores: f64) -> usize {
        (cores as usize).clamp(1, self.cores)
    }

    /// Rows read from disks so far; `None` where some are in a storage node.
    fn cold_reads(&self) -> Option<u64> {
        self.rows.lock().iter().map(RowSource::cold_reads).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::LookupThreads;
    use super::*;
    use crate::Arena;

    #[test]
    fn batches_get_their_part_of_the_cores_and_lookups_what_the_rest_needs() {
        let threads = LookupThreads::start(1, 1, &Arena::new(1 << 20).unwrap()).unwrap();
        let share = CoreShare::new(8, threads.limit());
        let numbers = |part| (share.batches(part), share.lookups_of(part, Some(COLD_READS_MAX)).unwrap());
        assert_eq!([0.0, 0.01, 0.25].map(numbers), [(1, 8), (1, 8), (2, 6)]);
        assert_eq!([0.45, 0.9, 1.0].map(numbers), [(4, 5), (7, 1), (8, 1)]);
    }

    #[test]
    fn lookups_that_wait_for_rows_have_no_limit() {
        let threads = LookupThreads::start(1, 1, &Arena::new(1 << 20).unwrap()).unwrap();
        let share = CoreShare::new(8, threads.limit());
        assert_eq!(share.lookups_of(0.5, Some(COLD_READS_MAX + 1)), None);
        assert_eq!(share.lookups_of(0.5, None), None, "they are in a storage node");
    }
}
