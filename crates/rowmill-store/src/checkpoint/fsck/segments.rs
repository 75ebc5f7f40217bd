//! Reads the segments of all logs and checks every block.

use std::collections::HashMap;

use rowmill_io::{DeviceError, Volume};
use rowmill_log::{Geometry, Log, LogConfig};
use rowmill_rows::RowKey;

use super::FsckReport;
use crate::error::StoreError;
use crate::files::{GroupEntry, Manifest};
use crate::store::log_name;

/// The content of one segment.
struct Segment {
    place: u32,
    /// Row number and key of every row whose block and key are intact, ascending.
    rows: Vec<(u32, RowKey)>,
    /// The first damage found.
    damage: Option<String>,
}

struct GroupSegments {
    segments: Vec<Segment>,
    rows_per_segment: u32,
    blocks_read: u64,
    /// Whether every row of the log was found.
    whole: bool,
}

pub(super) struct Segments {
    groups: Vec<GroupSegments>,
}

impl Segments {
    /// Read all segments that the manifest names. Segments beyond the end of their file are removed from the
    /// manifest.
    pub(super) fn open(
        volume: &dyn Volume,
        manifest: &mut Manifest,
        report: &mut FsckReport,
    ) -> Result<Self, StoreError> {
        let groups = (0..).zip(&mut manifest.groups);
        let groups = groups.map(|(number, group)| read_group(volume, number, group, report));
        Ok(Self { groups: groups.collect::<Result<_, _>>()? })
    }

    /// Number of blocks read.
    pub(super) fn blocks_read(&self) -> u64 {
        self.groups.iter().map(|group| group.blocks_read).sum()
    }

    /// Whether every row of a group's log was found.
    pub(super) fn is_whole(&self, group: u32) -> bool {
        self.groups[group as usize].whole
    }

    /// The row numbers of all versions of every row.
    pub(super) fn versions(&self) -> HashMap<RowKey, Vec<u32>> {
        let mut versions: HashMap<RowKey, Vec<u32>> = HashMap::new();
        let segments = self.groups.iter().flat_map(|group| &group.segments);
        for (row, key) in segments.flat_map(|segment| &segment.rows) {
            versions.entry(*key).or_default().push(*row);
        }
        versions
    }

    /// How many entries of a group do not name an intact row of their key.
    pub(super) fn missing(&self, group: u32, entries: &[(u32, RowKey)]) -> usize {
        let group = &self.groups[group as usize];
        let by_place: HashMap<u32, &Segment> =
            group.segments.iter().map(|segment| (segment.place, segment)).collect();
        let is_intact = |(row, key): &&(u32, RowKey)| {
            by_place.get(&(row / group.rows_per_segment)).is_some_and(|segment| {
                let at = segment.rows.binary_search_by_key(row, |(row, _)| *row);
                at.is_ok_and(|at| segment.rows[at].1 == *key)
            })
        };
        entries.len() - entries.iter().filter(is_intact).count()
    }

    /// Keep the entries of a group, sorted by row, whose rows are intact and have their keys. Returns the
    /// keys of the others.
    pub(super) fn prove(
        &self,
        number: u32,
        entries: &[(u32, RowKey)],
        kept: &mut HashMap<RowKey, u32>,
        damaged: &mut Vec<(u32, u32)>,
        report: &mut FsckReport,
    ) -> Vec<RowKey> {
        let group = &self.groups[number as usize];
        let mut lost = Vec::new();
        for same in entries.chunk_by(|one, other| one.0 == other.0).filter(|same| same.len() > 1) {
            report.problems.push(format!(
                "group {number}: {} entries of the index name row {}, among them {}",
                same.len(),
                same[0].0,
                same[0].1
            ));
        }
        let place_of = |row: u32| row / group.rows_per_segment;
        for entries in entries.chunk_by(|one, other| place_of(one.0) == place_of(other.0)) {
            let place = place_of(entries[0].0);
            let segment = group.segments.iter().find(|segment| segment.place == place);
            let mut nowhere = 0;
            for (row, key) in entries {
                let found = segment.and_then(|segment| {
                    let at = segment.rows.binary_search_by_key(row, |(row, _)| *row).ok()?;
                    Some(segment.rows[at].1)
                });
                match found {
                    Some(owner) if owner == *key => {
                        kept.insert(*key, *row);
                        continue;
                    }
                    Some(owner) => report
                        .problems
                        .push(format!("group {number}: the index has {key} at row {row}, which is {owner}")),
                    None => nowhere += 1,
                }
                lost.push(*key);
            }
            // Rows lost with a damaged segment are reported with its damage.
            if nowhere > 0 && segment.is_none_or(|segment| segment.damage.is_none()) {
                report.problems.push(format!(
                    "group {number}: the index has {nowhere} rows in place {place} that do not exist in the log"
                ));
            }
        }
        for segment in &group.segments {
            if let Some(damage) = &segment.damage {
                report.problems.push(damage.clone());
                damaged.push((number, segment.place));
            }
        }
        lost
    }
}

fn read_group(
    volume: &dyn Volume,
    number: u32,
    group: &mut GroupEntry,
    report: &mut FsckReport,
) -> Result<GroupSegments, StoreError> {
    let geometry = Geometry::new(group.stride as usize, group.segment_bytes as usize);
    let rows_per_segment = geometry.rows_per_segment();
    let mut read = GroupSegments { segments: Vec::new(), rows_per_segment, blocks_read: 0, whole: true };
    report.files += 1;
    report.segments += group.log.segments.len() as u64;
    let name = log_name(number);
    let device = match volume.device(&name, false) {
        Ok(device) => device,
        Err(DeviceError::Missing { .. }) => {
            if !group.log.segments.is_empty() {
                report.problems.push(format!("{name} does not exist"));
                group.log.segments.clear();
                read.whole = false;
            }
            return Ok(read);
        }
        Err(error) => return Err(error.into()),
    };
    let end = device.bytes();
    let fits = |place: u32| (u64::from(place) + 1) * geometry.place_bytes() as u64 <= end;
    let before = group.log.segments.len();
    group.log.segments.retain(|segment| fits(segment.place));
    let cut = before - group.log.segments.len();
    if cut > 0 {
        read.whole = false;
        report
            .problems
            .push(format!("{name} has {end} bytes: {cut} of its {before} segments lie beyond its end"));
    }
    let log = Log::open(device, LogConfig::for_reading(number, geometry, 0), &group.log)?;
    for record in &group.log.segments {
        let mut rows = Vec::new();
        let whole = log.segment_rows(record.place, &mut |row, key, _| rows.push((row, key)));
        rows.sort_unstable_by_key(|(row, _)| *row);
        let damage = whole.err().map(|error| {
            let lost = record.rows as usize - rows.len();
            format!("{name}: {error} ({lost} of {} rows of the segment cannot be read)", record.rows)
        });
        read.whole &= damage.is_none();
        read.segments.push(Segment { place: record.place, rows, damage });
    }
    read.segments.sort_unstable_by_key(|segment| segment.place);
    read.blocks_read = log.counts().blocks_read;
    Ok(read)
}
