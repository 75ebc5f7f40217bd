//! Counts the rows that a loaded index names.

use super::Log;
use super::segment_table::Whereabouts;

/// Counts rows to be retained apart from the shared counters of the log. There are millions of rows, and
/// threads that count in parallel would contend. Nothing is retained before [`Retaining::finish`].
#[must_use = "nothing is retained before `finish`"]
pub struct Retaining<'a> {
    log: &'a Log,
    places: Vec<PlaceRows>,
}

#[derive(Clone, Default)]
struct PlaceRows {
    /// Rows of the segment in this place.
    rows: u32,
    /// How many of them are retained.
    retained: u32,
}

impl<'a> Retaining<'a> {
    pub(super) fn new(log: &'a Log) -> Self {
        let table = log.shared.table.read();
        let rows = |place| match table.find(place) {
            Whereabouts::Device { rows, .. } => rows,
            Whereabouts::Tail { .. } | Whereabouts::Nowhere => 0,
        };
        let places = (0..table.places()).map(|place| PlaceRows { rows: rows(place), retained: 0 }).collect();
        Self { log, places }
    }

    /// Retain a row. Returns false when the device has no such row.
    pub fn row(&mut self, number: u32) -> bool {
        if !self.has(number) {
            return false;
        }
        self.count(number);
        self.log.name(number);
        true
    }

    /// Whether the device has this row.
    pub(super) fn has(&self, number: u32) -> bool {
        let (place, index) = self.log.shared.geometry.locate(number);
        self.places.get(place as usize).is_some_and(|place| index < place.rows)
    }

    /// Count a row that the device has.
    pub(super) fn count(&mut self, number: u32) {
        let (place, _) = self.log.shared.geometry.locate(number);
        self.places[place as usize].retained += 1;
    }

    /// Add the counts to the counters of the log.
    pub fn finish(self) {
        for (place, PlaceRows { retained, .. }) in (0..).zip(self.places) {
            if retained > 0 {
                self.log.shared.live.retain(place, retained);
            }
        }
    }
}
