//! Counting the rows that a loaded index names.

use super::Log;
use super::segment_table::Whereabouts;

/// Rows to be retained, counted apart from the log's own counters: they are millions, and those who count
/// them side by side would only wait for each other. Nothing is retained before [`Retaining::finish`].
#[must_use = "nothing is retained before `finish`"]
pub struct Retaining<'a> {
    log: &'a Log,
    places: Vec<PlaceRows>,
}

#[derive(Clone, Default)]
struct PlaceRows {
    /// Rows of its segment.
    rows: u32,
    /// Of them, those retained.
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

    /// Retain a row; false when there is no such row on the device.
    pub fn row(&mut self, number: u32) -> bool {
        let (place, index) = self.log.shared.geometry.locate(number);
        let Some(place) = self.places.get_mut(place as usize).filter(|place| index < place.rows) else {
            return false;
        };
        place.retained += 1;
        true
    }

    /// Give the counts to the log.
    pub fn finish(self) {
        for (place, PlaceRows { retained, .. }) in (0..).zip(self.places) {
            if retained > 0 {
                self.log.shared.live.retain(place, retained);
            }
        }
    }
}
