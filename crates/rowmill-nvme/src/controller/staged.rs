//! Results of stage commands, until a host fetches them. They belong to a controller and are valid on all of its queues.
//! A fetch of a result that is not ready waits for it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::command::Status;
use crate::vendor::{AsOf, Fetch, StagedResult};

/// Limits of the staged results of one controller.
#[derive(Clone, Copy, Debug)]
pub struct StagedLimits {
    /// Most results.
    pub results_max: usize,
    /// Most bytes of all results.
    pub bytes_max: u64,
    /// Most fetches that wait for one result.
    pub waiting_max: usize,
    /// A result that is not fetched is dropped after this time.
    pub lifetime: Duration,
}

/// What becomes of a fetch. `T` names its command for the node, such as queue and command identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// The data of the answer.
    Data(Vec<u8>),
    /// The result is not ready: the fetch waits, and [`StagedResults::finish`] returns it.
    Waits,
    /// The status of the answer.
    Failed(Status),
}

#[derive(Debug)]
enum State<T> {
    /// Being pooled.
    Running {
        waiting: Vec<(T, Fetch, usize)>,
    },
    Ready {
        result: Result<StagedResult, Status>,
        as_of: AsOf,
    },
}

#[derive(Debug)]
struct Entry<T> {
    state: State<T>,
    bytes: u64,
    deadline: Instant,
}

/// The staged results of one controller.
#[derive(Debug)]
pub struct StagedResults<T> {
    limits: StagedLimits,
    entries: HashMap<u64, Entry<T>>,
    bytes: u64,
}

impl<T> StagedResults<T> {
    /// No results.
    pub fn new(limits: StagedLimits) -> StagedResults<T> {
        StagedResults { limits, entries: HashMap::new(), bytes: 0 }
    }

    /// Begin to pool a result of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`Status::HANDLE_IN_USE`] and [`Status::OVER_QUOTA`].
    pub fn begin(&mut self, now: Instant, handle: u64, bytes: u64) -> Result<(), Status> {
        self.expire(now);
        if self.entries.contains_key(&handle) {
            return Err(Status::HANDLE_IN_USE);
        }
        let has_room = self.entries.len() < self.limits.results_max
            && self.bytes.checked_add(bytes).is_some_and(|sum| sum <= self.limits.bytes_max);
        if !has_room {
            return Err(Status::OVER_QUOTA);
        }
        self.bytes += bytes;
        let deadline = now + self.limits.lifetime;
        self.entries.insert(handle, Entry { state: State::Running { waiting: Vec::new() }, bytes, deadline });
        Ok(())
    }

    /// A result is ready, pooled from rows as of then, or has failed. Returns the fetches that waited for it, each with
    /// its outcome.
    pub fn finish(
        &mut self,
        now: Instant,
        handle: u64,
        result: Result<StagedResult, Status>,
        as_of: AsOf,
    ) -> Vec<(T, FetchOutcome)> {
        let Some(entry) = self.entries.get_mut(&handle) else { return Vec::new() };
        entry.deadline = now + self.limits.lifetime;
        let before = std::mem::replace(&mut entry.state, State::Ready { result, as_of });
        let State::Running { waiting } = before else { return Vec::new() };
        waiting.into_iter().map(|(command, fetch, bytes)| (command, self.answer(fetch, bytes))).collect()
    }

    /// Fetch `bytes` bytes of a result.
    pub fn fetch(&mut self, now: Instant, command: T, fetch: Fetch, bytes: usize) -> FetchOutcome {
        self.expire(now);
        if let Some(Entry { state: State::Running { waiting }, .. }) = self.entries.get_mut(&fetch.handle) {
            if waiting.len() >= self.limits.waiting_max {
                return FetchOutcome::Failed(Status::OVER_QUOTA);
            }
            waiting.push((command, fetch, bytes));
            return FetchOutcome::Waits;
        }
        self.answer(fetch, bytes)
    }

    fn answer(&mut self, fetch: Fetch, bytes: usize) -> FetchOutcome {
        let Some(Entry { state: State::Ready { result, as_of }, .. }) = self.entries.get(&fetch.handle)
        else {
            return FetchOutcome::Failed(Status::UNKNOWN_HANDLE);
        };
        let (outcome, is_kept) = match result {
            Ok(result) if result.damaged > 0 && !fetch.takes_damaged => {
                (FetchOutcome::Failed(Status::UNRECOVERED_READ_ERROR), fetch.is_kept)
            }
            Ok(result) => (FetchOutcome::Data(fetch.encode(result, *as_of, bytes)), fetch.is_kept),
            Err(status) => (FetchOutcome::Failed(*status), false),
        };
        if !is_kept {
            self.remove(fetch.handle);
        }
        outcome
    }

    fn remove(&mut self, handle: u64) {
        if let Some(entry) = self.entries.remove(&handle) {
            self.bytes -= entry.bytes;
        }
    }

    /// Drop results that are too old. Results that are being pooled stay.
    pub fn expire(&mut self, now: Instant) {
        let bytes = &mut self.bytes;
        self.entries.retain(|_, entry| {
            let stays = now < entry.deadline || matches!(entry.state, State::Running { .. });
            if !stays {
                *bytes -= entry.bytes;
            }
            stays
        });
    }

    /// Bytes of all results.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vendor::FetchHeader;

    const LIMITS: StagedLimits =
        StagedLimits { results_max: 2, bytes_max: 100, waiting_max: 1, lifetime: Duration::from_mins(1) };

    const AS_OF: AsOf = AsOf { sequence: 9, generation: 1 };

    fn fetch(handle: u64) -> Fetch {
        Fetch { handle, offset: 0, is_kept: false, takes_damaged: false }
    }

    fn result(bytes: &[u8]) -> StagedResult {
        StagedResult { bytes: bytes.to_vec(), damaged: 0 }
    }

    fn part(outcome: &FetchOutcome) -> Vec<u8> {
        let FetchOutcome::Data(data) = outcome else { panic!("{outcome:?}") };
        FetchHeader::parse(data).unwrap().1.to_vec()
    }

    #[test]
    fn a_fetch_waits_for_its_result_and_frees_it() {
        let now = Instant::now();
        let mut staged = StagedResults::new(LIMITS);
        staged.begin(now, 7, 3).unwrap();
        assert_eq!(staged.fetch(now, "first", fetch(7), 40), FetchOutcome::Waits);
        assert_eq!(staged.fetch(now, "second", fetch(7), 40), FetchOutcome::Failed(Status::OVER_QUOTA));
        let finished = staged.finish(now, 7, Ok(result(&[1, 2, 3])), AS_OF);
        assert_eq!((finished.len(), finished[0].0, part(&finished[0].1)), (1, "first", vec![1, 2, 3]));
        assert_eq!(staged.bytes(), 0);
        assert_eq!(staged.fetch(now, "third", fetch(7), 40), FetchOutcome::Failed(Status::UNKNOWN_HANDLE));
    }

    #[test]
    fn a_kept_result_is_fetched_in_parts_until_it_is_too_old() {
        let now = Instant::now();
        let mut staged = StagedResults::new(LIMITS);
        staged.begin(now, 7, 10).unwrap();
        staged.finish(now, 7, Ok(result(&(0..10).collect::<Vec<_>>())), AS_OF);
        for offset in [0, 4, 8] {
            let outcome = staged.fetch(now, (), Fetch { offset, is_kept: true, ..fetch(7) }, 36);
            assert_eq!(part(&outcome), (offset as u8..10).take(4).collect::<Vec<_>>());
        }
        let later = now + LIMITS.lifetime;
        assert_eq!(staged.fetch(later, (), fetch(7), 36), FetchOutcome::Failed(Status::UNKNOWN_HANDLE));
        assert_eq!(staged.bytes(), 0);
    }

    #[test]
    fn damaged_vectors_are_for_those_that_take_them() {
        let now = Instant::now();
        let mut staged = StagedResults::new(LIMITS);
        staged.begin(now, 7, 8).unwrap();
        staged.finish(now, 7, Ok(StagedResult { bytes: vec![0xff; 8], damaged: 1 }), AS_OF);
        let refused = staged.fetch(now, (), Fetch { is_kept: true, ..fetch(7) }, 40);
        assert_eq!(refused, FetchOutcome::Failed(Status::UNRECOVERED_READ_ERROR));
        let outcome = staged.fetch(now, (), Fetch { takes_damaged: true, ..fetch(7) }, 40);
        assert_eq!(part(&outcome), [0xff; 8]);
        assert_eq!(staged.bytes(), 0);
        staged.begin(now, 8, 8).unwrap();
        staged.finish(now, 8, Ok(StagedResult { bytes: vec![0xff; 8], damaged: 1 }), AS_OF);
        let refused = staged.fetch(now, (), fetch(8), 40);
        assert_eq!((refused, staged.bytes()), (FetchOutcome::Failed(Status::UNRECOVERED_READ_ERROR), 0));
    }

    #[test]
    fn handles_and_bytes_are_bounded() {
        let now = Instant::now();
        let mut staged = StagedResults::<()>::new(LIMITS);
        staged.begin(now, 1, 60).unwrap();
        assert_eq!(staged.begin(now, 1, 1), Err(Status::HANDLE_IN_USE));
        assert_eq!(staged.begin(now, 2, 41), Err(Status::OVER_QUOTA));
        assert_eq!(staged.begin(now, 2, u64::MAX), Err(Status::OVER_QUOTA));
        staged.begin(now, 2, 40).unwrap();
        assert_eq!(staged.begin(now, 3, 0), Err(Status::OVER_QUOTA));
        // What is being pooled is not dropped: its memory is in use.
        let later = now + LIMITS.lifetime;
        assert_eq!(staged.begin(later, 3, 0), Err(Status::OVER_QUOTA));
        assert!(staged.finish(later, 2, Err(Status::UNKNOWN_TABLE), AS_OF).is_empty());
        assert_eq!(staged.fetch(later, (), fetch(2), 32), FetchOutcome::Failed(Status::UNKNOWN_TABLE));
        staged.begin(later, 3, 0).unwrap();
    }
}
