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

    /// A result is ready. Returns the fetches that waited for it, and what they are answered with.
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

    /// Drop what is too old.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.controllers.values_mut().for_each(|controller| controller.results.expire(now));
    }
}

impl<T> Controller<T> {
    /// Each place is told once.
    fn settle(&mut self, handle: u64, outcome: FetchOutcome) -> Option<Fetched> {
        let data = match outcome {
            FetchOutcome::Waits => return None,
            FetchOutcome::Data(data) => Ok(data),
            FetchOutcome::Failed(status) => Err(status),
        };
        Some(Fetched { data, places: self.places.remove(&handle).unwrap_or_default() })
    }
}
