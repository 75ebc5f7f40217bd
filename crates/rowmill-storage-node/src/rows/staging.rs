//! Staged results of all controllers of a subsystem.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rowmill_nvme::{AsOf, ErrorPlace, Fetch, FetchOutcome, StagedLimits, StagedResults, Status, VendorArea};

use super::job::Pooled;
use crate::fault::{Fault, Fetched};

/// Most features of one stage command.
const FEATURES_MAX: u32 = 4096;
/// Most staged results of one controller.
const RESULTS_MAX: u32 = 4096;
/// Most fetches that wait for one result.
const WAITING_MAX: usize = 16;
/// Most results of one controller whose unreadable rows are remembered.
const PLACES_MAX: usize = 64;

/// The limits, as hosts read them.
pub(crate) fn area(bytes_max: u64, lifetime: Duration) -> VendorArea {
    VendorArea::new(FEATURES_MAX, RESULTS_MAX, bytes_max, lifetime.as_secs() as u32)
}

struct Controller<T> {
    results: StagedResults<T>,
    /// Where rows of results could not be read, until a host fetches them.
    places: HashMap<u64, Vec<ErrorPlace>>,
}

/// Staged results by controller. `T` names a fetch that waits.
pub(crate) struct Staging<T> {
    controllers: HashMap<u16, Controller<T>>,
    bytes_max: u64,
    /// A result that is not fetched is dropped after this time.
    lifetime: Duration,
}

impl<T> Staging<T> {
    /// At most `bytes_max` bytes, of all controllers.
    pub(crate) fn new(bytes_max: u64, lifetime: Duration) -> Staging<T> {
        Staging { controllers: HashMap::new(), bytes_max, lifetime }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.controllers.values().map(|controller| controller.results.bytes()).sum()
    }

    pub(crate) fn begin(
        &mut self,
        now: Instant,
        controller: u16,
        handle: u64,
        bytes: u64,
    ) -> Result<(), Status> {
        self.expire(now);
        if self.bytes().checked_add(bytes).is_none_or(|sum| sum > self.bytes_max) {
            return Err(Status::OVER_QUOTA);
        }
        let limits = StagedLimits {
            results_max: RESULTS_MAX as usize,
            bytes_max: self.bytes_max,
            waiting_max: WAITING_MAX,
            lifetime: self.lifetime,
        };
        let make = || Controller { results: StagedResults::new(limits), places: HashMap::new() };
        let controller = self.controllers.entry(controller).or_insert_with(make);
        controller.results.begin(now, handle, bytes)
    }

    /// A result is ready. Returns the fetches that waited for it, with their answers.
    pub(crate) fn finish(
        &mut self,
        now: Instant,
        controller: u16,
        handle: u64,
        result: Result<Pooled, Fault>,
        as_of: AsOf,
    ) -> Vec<(T, Fetched)> {
        // The host may have left meanwhile.
        let Some(controller) = self.controllers.get_mut(&controller) else { return Vec::new() };
        let (result, places) = match result {
            Ok(Pooled { result, places }) => (Ok(result), places),
            Err(Fault { status, place }) => (Err(status), place.into_iter().collect()),
        };
        // An earlier result of this handle may not have been fetched.
        controller.places.remove(&handle);
        if !places.is_empty() {
            // Places of results that no host fetches do not pile up.
            if controller.places.len() >= PLACES_MAX {
                controller.places.clear();
            }
            controller.places.insert(handle, places);
        }
        let answered = controller.results.finish(now, handle, result, as_of);
        answered
            .into_iter()
            .filter_map(|(command, outcome)| Some((command, controller.settle(handle, outcome)?)))
            .collect()
    }

    /// Fetch a part of a result. `None`: the fetch waits, and [`Staging::finish`] returns it.
    pub(crate) fn fetch(
        &mut self,
        now: Instant,
        controller: u16,
        command: T,
        fetch: Fetch,
        bytes: usize,
    ) -> Option<Fetched> {
        let Some(controller) = self.controllers.get_mut(&controller) else {
            return Some(Status::UNKNOWN_HANDLE.into());
        };
        let outcome = controller.results.fetch(now, command, fetch, bytes);
        controller.settle(fetch.handle, outcome)
    }

    /// A controller is gone, with its results.
    pub(crate) fn remove(&mut self, controller: u16) {
        self.controllers.remove(&controller);
    }

    /// Drop results that are too old.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.controllers.values_mut().for_each(|controller| controller.results.expire(now));
    }
}

impl<T> Controller<T> {
    /// What a fetch is answered with. The first one that is answered gets the places of the result; later ones get none.
    fn settle(&mut self, handle: u64, outcome: FetchOutcome) -> Option<Fetched> {
        let data = match outcome {
            FetchOutcome::Waits => return None,
            FetchOutcome::Data(data) => Ok(data),
            FetchOutcome::Failed(status) => Err(status),
        };
        Some(Fetched { data, places: self.places.remove(&handle).unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use rowmill_nvme::StagedResult;

    use super::*;

    const HANDLE: u64 = 7;
    const PLACE: ErrorPlace = ErrorPlace { namespace: 1, block: 5, table: Some(2) };

    fn stage(staging: &mut Staging<()>, now: Instant, places: &[ErrorPlace]) {
        staging.begin(now, 9, HANDLE, 4).unwrap();
        let result = StagedResult { bytes: vec![0xff; 4], damaged: places.len() as u16 };
        let pooled = Pooled { result, places: places.to_vec() };
        let as_of = AsOf { sequence: 0, generation: 1 };
        assert!(staging.finish(now, 9, HANDLE, Ok(pooled), as_of).is_empty());
    }

    fn places(staging: &mut Staging<()>, now: Instant, is_kept: bool) -> Vec<ErrorPlace> {
        let fetch = Fetch { handle: HANDLE, offset: 0, is_kept, takes_damaged: true };
        let fetched = staging.fetch(now, 9, (), fetch, 36).unwrap();
        assert!(fetched.data.is_ok());
        fetched.places
    }

    #[test]
    fn places_are_of_the_result_that_is_fetched() {
        let (begin, lifetime) = (Instant::now(), Duration::from_secs(1));
        let mut staging = Staging::new(100, lifetime);
        stage(&mut staging, begin, &[PLACE]);
        // It is dropped without a fetch, and its handle is used again.
        let now = begin + lifetime;
        stage(&mut staging, now, &[]);
        assert_eq!(places(&mut staging, now, false), []);
        stage(&mut staging, now, &[PLACE]);
        assert_eq!(places(&mut staging, now, true), [PLACE]);
        assert_eq!(places(&mut staging, now, false), []);
    }
}
