//! Which segment lies in which place, which places may be rewritten, and which segment to clean next.
//!
//! Invariants:
//! - Every sequence number is used once in the life of the file, crashes included.
//! - A place that a durable checkpoint names is rewritten only after a later checkpoint is durable and the
//!   earlier one is not pinned.
//! - A place is not rewritten while a reader may still read a row that it looked up there.
//! - The lowest free place is reused first. When the number of rows shrinks, the free places end up at the
//!   end of the file.
//!
//! Epochs: a *cut* ends epoch `c`. Until checkpoint `c` is durable, it may name rows appended in epoch `c +
//! 1`, because frozen rows reach the log after the cut. So every segment records the last checkpoint that may
//! name it. A segment freed before any cut could name it is reusable at once. Any other segment waits for a
//! checkpoint whose cut came after the freeing.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use super::LogConfig;
use super::geometry::Geometry;
use super::live_counts::LiveCounts;
use super::reading::Readings;
use super::state::{LogState, SegmentRecord};

/// Each opening skips at most 2^40 sequence numbers. Its incarnation gives the number.
const INCARNATION_BITS: u32 = 40;

/// Where the rows of a segment can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts<'a> {
    /// In a tail buffer, as long as the buffer still holds `sequence`.
    Tail { buffer: u32, sequence: u64 },
    /// On the device. Without `checksums`, they must be read from the trailer.
    Device { sequence: u64, rows: u32, checksums: Option<&'a [u32]> },
    /// The place holds no segment.
    Nowhere,
}

/// Bytes of the log, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSpace {
    /// Bytes of retained rows, without trailers and padding.
    pub live: u64,
    /// `live` plus the bytes at the end of each block that no further row fits into.
    pub packed: u64,
    /// Bytes of places with retained rows.
    pub used: u64,
    /// Bytes of places that wait for a checkpoint before they can be rewritten.
    pub pinned: u64,
    /// Bytes of places that can be written now or once the current readers end. Places that were returned to
    /// the file system are not counted.
    pub free: u64,
}

/// A segment worth cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Place of the segment.
    pub place: u32,
    /// Its sequence number.
    pub sequence: u64,
    /// Rows that must be moved.
    pub live_rows: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Status {
    /// No segment, or a segment that no reader can read any more.
    #[default]
    Empty,
    /// In a tail buffer: still taking rows, or sealed and waiting to be written.
    Tail { buffer: u32, sealed: bool },
    /// On the device.
    Written,
}

#[derive(Debug, Default)]
struct Segment {
    status: Status,
    sequence: u64,
    /// How many segments this log had opened before this one. The age of a segment is a difference of two
    /// births.
    birth: u64,
    /// Number of rows; set when sealed.
    rows: u32,
    /// The last checkpoint that may name this segment.
    named_until: u64,
    /// Epoch in which the last retained row was released.
    freed_in: Option<u64>,
    /// Found corrupt: not cleaned again, because cleaning would fail again.
    damaged: bool,
    /// A thread is cleaning it.
    claimed: bool,
    /// Number of this write, counted from 1; 0 for segments of the checkpoint that the log was opened at.
    written_as: u64,
    checksums: Option<Box<[u32]>>,
    /// Whether the checksums were used since the clock hand last passed.
    recent: AtomicBool,
}

#[derive(Debug)]
pub(super) struct SegmentTable {
    geometry: Geometry,
    segments: Vec<Segment>,
    /// Number of places that row numbers can name.
    places_max: u32,
    free: BTreeSet<u32>,
    /// The free places that were returned to the file system.
    hollow: BTreeSet<u32>,
    /// Freed places that wait for readers, oldest first, with their stamps.
    resting: VecDeque<(u64, u32)>,
    /// Freed places that wait for a checkpoint, with the epoch they were freed in.
    pinned: Vec<(u64, u32)>,
    /// Pinned durable checkpoints, one entry per pin. They are being copied.
    pins: Vec<u64>,
    /// The last durable checkpoint.
    durable: u64,
    epoch: u64,
    /// The cut whose checkpoint is being written.
    checkpointing: Option<u64>,
    next_sequence: u64,
    births: u64,
    segments_written: u64,
    /// How many of the segments written are durable.
    segments_durable: u64,
    checksum_bytes: usize,
    checksum_bytes_max: usize,
    /// Clock hand: the next place whose checksums may be dropped.
    hand: usize,
}

impl SegmentTable {
    /// The table of a checkpoint. The incarnation differs at every opening, so a segment that a crash left in
    /// a free place never has a sequence number that is used again.
    pub(super) fn new(config: &LogConfig, state: &LogState, live: &LiveCounts) -> Result<Self, String> {
        let &LogConfig { geometry, incarnation, checksum_bytes_max, row_numbers, .. } = config;
        let skip = 1 + (incarnation & ((1 << INCARNATION_BITS) - 1));
        let next_sequence = state.next_sequence.checked_add(skip).ok_or("no sequence number is left")?;
        let mut table = Self {
            geometry,
            segments: Vec::new(),
            places_max: geometry.places_max(row_numbers),
            free: BTreeSet::new(),
            hollow: BTreeSet::new(),
            resting: VecDeque::new(),
            pinned: Vec::new(),
            pins: Vec::new(),
            durable: state.cut,
            epoch: state.cut.checked_add(1).ok_or("no epoch number is left")?,
            checkpointing: None,
            next_sequence,
            births: 0,
            segments_written: 0,
            segments_durable: 0,
            checksum_bytes: 0,
            checksum_bytes_max,
            hand: 0,
        };
        let mut records: Vec<&SegmentRecord> = state.segments.iter().collect();
        records.sort_unstable_by_key(|record| record.sequence);
        for record in records {
            table.adopt(*record, state, live)?;
        }
        table.free =
            (0..).zip(&table.segments).filter(|(_, s)| s.status == Status::Empty).map(|(p, _)| p).collect();
        Ok(table)
    }

    fn adopt(&mut self, record: SegmentRecord, state: &LogState, live: &LiveCounts) -> Result<(), String> {
        let SegmentRecord { place, sequence, rows } = record;
        if place >= self.places_max {
            return Err(format!("a segment lies in place {place}, the log has {} places", self.places_max));
        }
        if rows == 0 || rows > self.geometry.rows_per_segment() {
            return Err(format!(
                "the segment in place {place} has {rows} rows, at most {} fit",
                self.geometry.rows_per_segment()
            ));
        }
        if sequence >= state.next_sequence {
            return Err(format!(
                "segment {sequence} exists, but the next sequence number is {}",
                state.next_sequence
            ));
        }
        self.cover(place, live);
        if self.segments[place as usize].status != Status::Empty {
            return Err(format!("two segments lie in place {place}"));
        }
        self.segments[place as usize] = Segment {
            status: Status::Written,
            sequence,
            birth: self.births,
            rows,
            named_until: state.cut,
            ..Segment::default()
        };
        self.births += 1;
        Ok(())
    }

    /// Make an entry and a counter for every place up to `place`.
    fn cover(&mut self, place: u32, live: &LiveCounts) {
        for place in self.segments.len() as u32..=place {
            live.cover(place);
            self.segments.push(Segment::default());
        }
    }

    /// Assign the lowest reusable place, or a new one, to a segment that tail buffer `buffer` collects.
    /// Returns its place and sequence number, `None` when no place is left.
    pub(super) fn open(&mut self, buffer: u32, live: &LiveCounts, readings: &Readings) -> Option<(u32, u64)> {
        self.settle(readings);
        let place = match self.free.pop_first() {
            Some(place) => {
                self.hollow.remove(&place);
                place
            }
            None if (self.segments.len() as u32) < self.places_max => {
                let place = self.segments.len() as u32;
                self.cover(place, live);
                place
            }
            None => return None,
        };
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.segments[place as usize] = Segment {
            status: Status::Tail { buffer, sealed: false },
            sequence,
            birth: self.births,
            named_until: self.checkpointing.unwrap_or(self.epoch),
            ..Segment::default()
        };
        self.births += 1;
        Some((place, sequence))
    }

    /// The segment in `place` takes no more rows.
    pub(super) fn sealed(&mut self, place: u32, rows: u32, live: &LiveCounts, readings: &Readings) {
        let segment = &mut self.segments[place as usize];
        let Status::Tail { buffer, sealed: false } = segment.status else {
            panic!("place {place} can be sealed only once and while open, its status is {:?}", segment.status)
        };
        segment.status = Status::Tail { buffer, sealed: true };
        segment.rows = rows;
        self.emptied(place, live, readings);
    }

    /// The segment in `place` has reached the device.
    pub(super) fn written(&mut self, place: u32, checksums: Box<[u32]>, readings: &Readings) {
        let segment = &mut self.segments[place as usize];
        segment.status = Status::Written;
        self.segments_written += 1;
        segment.written_as = self.segments_written;
        if segment.freed_in.is_some() {
            self.retire(place, readings);
        } else {
            self.remember(place, checksums);
        }
    }

    /// Free the segment in `place` if it has no retained row and takes no more rows.
    pub(super) fn emptied(&mut self, place: u32, live: &LiveCounts, readings: &Readings) {
        let segment = &mut self.segments[place as usize];
        let complete = matches!(segment.status, Status::Tail { sealed: true, .. } | Status::Written);
        if !complete || segment.freed_in.is_some() || live.of(place) > 0 {
            return;
        }
        segment.freed_in = Some(self.epoch);
        if segment.status == Status::Written {
            self.retire(place, readings);
        }
    }

    /// Make a freed place that is not being written reusable, now or after readers and checkpoints.
    fn retire(&mut self, place: u32, readings: &Readings) {
        self.forget(place);
        let segment = &self.segments[place as usize];
        let freed_in = segment.freed_in.expect("a retired place was freed before");
        if segment.named_until < freed_in {
            self.pinned.push((freed_in, place));
        } else {
            self.rest(place, readings);
        }
    }

    fn rest(&mut self, place: u32, readings: &Readings) {
        self.segments[place as usize].status = Status::Empty;
        self.resting.push_back((readings.freed(), place));
    }

    /// Free the places that no reader can read any more.
    pub(super) fn settle(&mut self, readings: &Readings) {
        if self.resting.is_empty() {
            return;
        }
        let clear = readings.clear();
        let mut held = Vec::new();
        while let Some(&(stamp, place)) = self.resting.front()
            && clear.of_rows(stamp)
        {
            self.resting.pop_front();
            if clear.is_read(place) {
                held.push((stamp, place));
            } else {
                self.free.insert(place);
            }
        }
        held.into_iter().rev().for_each(|place| self.resting.push_front(place));
    }

    /// End the epoch. Its number identifies the checkpoint.
    pub(super) fn cut(&mut self) -> u64 {
        let cut = self.epoch;
        self.epoch += 1;
        self.checkpointing = Some(cut);
        cut
    }

    /// Checkpoint `cut` is durable: no checkpoint but a pinned one names places freed before it.
    pub(super) fn checkpoint_durable(&mut self, cut: u64, readings: &Readings) {
        if self.checkpointing.is_some_and(|current| current <= cut) {
            self.checkpointing = None;
        }
        self.durable = self.durable.max(cut);
        self.let_go(readings);
    }

    /// Until it is unpinned, rewrite no segment of durable checkpoint `cut`.
    pub(super) fn pin(&mut self, cut: u64) {
        self.pins.push(cut);
    }

    /// Undo one [`SegmentTable::pin`] of `cut`.
    pub(super) fn unpin(&mut self, cut: u64, readings: &Readings) {
        let at = self.pins.iter().position(|&pin| pin == cut).expect("only a pinned checkpoint is unpinned");
        self.pins.swap_remove(at);
        self.let_go(readings);
    }

    /// Free the places that neither the last durable checkpoint nor a pinned one names.
    fn let_go(&mut self, readings: &Readings) {
        for (freed_in, place) in std::mem::take(&mut self.pinned) {
            let names = |pin: &u64| (self.segments[place as usize].named_until..freed_in).contains(pin);
            if freed_in <= self.durable && !self.pins.iter().any(names) {
                self.rest(place, readings);
            } else {
                self.pinned.push((freed_in, place));
            }
        }
        self.settle(readings);
    }

    /// Number of segments written so far.
    pub(super) fn segments_written(&self) -> u64 {
        self.segments_written
    }

    /// The first `written` segments are durable.
    pub(super) fn synced(&mut self, written: u64) {
        self.segments_durable = self.segments_durable.max(written);
    }

    /// The segments that checkpoint `cut` names: durable ones that held its rows at the cut or may have
    /// received some since. Segments written later are not named: a prepared checkpoint may wait long before
    /// it becomes durable and must not pin them.
    pub(super) fn state(&mut self, cut: u64) -> LogState {
        let mut segments = Vec::new();
        for (place, segment) in (0..).zip(&mut self.segments) {
            if segment.named_until > cut {
                continue;
            }
            let durable = segment.status == Status::Written && segment.written_as <= self.segments_durable;
            if !durable {
                segment.named_until = cut + 1;
            } else if segment.freed_in.is_none_or(|freed_in| freed_in > cut) {
                let &mut Segment { sequence, rows, .. } = segment;
                segments.push(SegmentRecord { place, sequence, rows });
            }
        }
        if self.checkpointing.is_some_and(|current| current <= cut) {
            self.checkpointing = None;
        }
        LogState { cut, next_sequence: self.next_sequence, segments }
    }

    /// Free every segment without a retained row. Called once after the index of a checkpoint was loaded.
    pub(super) fn loaded(&mut self, live: &LiveCounts, readings: &Readings) {
        for place in 0..self.segments.len() as u32 {
            self.emptied(place, live, readings);
        }
    }

    /// Number of places that can be written now.
    pub(super) fn free_places(&self) -> u32 {
        (self.free.len() + self.places_max as usize - self.segments.len()) as u32
    }

    /// The count of row numbers in places that cannot be written now, and of all row numbers.
    pub(super) fn row_numbers(&self) -> (u64, u64) {
        let rows = |places: u32| u64::from(places) * u64::from(self.geometry.rows_per_segment());
        (rows(self.places_max - self.free_places()), rows(self.places_max))
    }

    /// Number of places, with segments and free.
    pub(super) fn places(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Where the rows of the segment in `place` can be read.
    pub(super) fn find(&self, place: u32) -> Whereabouts<'_> {
        let Some(segment) = self.segments.get(place as usize) else { return Whereabouts::Nowhere };
        let sequence = segment.sequence;
        match segment.status {
            Status::Tail { buffer, .. } => Whereabouts::Tail { buffer, sequence },
            Status::Written => {
                let checksums = segment.checksums.as_deref();
                if checksums.is_some() && !segment.recent.load(Ordering::Relaxed) {
                    segment.recent.store(true, Ordering::Relaxed);
                }
                Whereabouts::Device { sequence, rows: segment.rows, checksums }
            }
            Status::Empty => Whereabouts::Nowhere,
        }
    }

    /// Cache the checksums of segment `sequence` for later readers.
    pub(super) fn learned(&mut self, place: u32, sequence: u64, checksums: Box<[u32]>) {
        let segment = &self.segments[place as usize];
        if segment.sequence == sequence && segment.status == Status::Written && segment.freed_in.is_none() {
            self.remember(place, checksums);
        }
    }

    fn remember(&mut self, place: u32, checksums: Box<[u32]>) {
        self.forget(place);
        self.checksum_bytes += size_of_val(&*checksums);
        self.segments[place as usize].checksums = Some(checksums);
        // Second chance: the first turn clears the marks, so two turns always find checksums to drop.
        for _ in 0..2 * self.segments.len() {
            if self.checksum_bytes <= self.checksum_bytes_max {
                break;
            }
            self.hand = (self.hand + 1) % self.segments.len();
            if !std::mem::take(self.segments[self.hand].recent.get_mut()) {
                self.forget(self.hand as u32);
            }
        }
    }

    fn forget(&mut self, place: u32) {
        if let Some(checksums) = self.segments[place as usize].checksums.take() {
            self.checksum_bytes -= size_of_val(&*checksums);
        }
    }

    /// Claim a segment for the calling thread to clean. Returns false if another thread has claimed it.
    pub(super) fn claim(&mut self, victim: Victim) -> bool {
        // The place may have been freed and reused, or returned to the file system, since `victim` was chosen.
        let segment = self.segments.get_mut(victim.place as usize);
        let Some(segment) = segment.filter(|segment| segment.sequence == victim.sequence) else {
            return false;
        };
        !std::mem::replace(&mut segment.claimed, true)
    }

    /// End a claim, if the place still holds the segment.
    pub(super) fn unclaim(&mut self, victim: Victim) {
        let segment = self.segments.get_mut(victim.place as usize);
        if let Some(segment) = segment.filter(|segment| segment.sequence == victim.sequence) {
            segment.claimed = false;
        }
    }

    /// Do not offer `place` for cleaning again.
    pub(super) fn damaged(&mut self, place: u32, sequence: u64) {
        let segment = &mut self.segments[place as usize];
        segment.damaged |= segment.sequence == sequence;
    }

    /// The segment whose cleaning pays most: (space freed * age) / (cost of reading it and writing the live
    /// rows). See Rosenblum and Ousterhout, The design and implementation of a log-structured file system,
    /// 1991, section 3.6. Choosing the emptiest segment instead moves 2.4 times as many rows when a tenth of
    /// the rows takes 90 % of the changes. When all rows change equally often, both move the same number.
    ///
    /// It visits every place (about 10 ns each); a log of 100 Ki segments would need a heap.
    pub(super) fn victim(&self, live: &LiveCounts) -> Option<Victim> {
        let room = self.geometry.rows_per_segment();
        let mut best: Option<(f64, Victim)> = None;
        for (place, segment) in (0..).zip(&self.segments) {
            if segment.status != Status::Written
                || segment.freed_in.is_some()
                || segment.damaged
                || segment.claimed
            {
                continue;
            }
            let live_rows = live.of(place);
            if live_rows >= room {
                continue;
            }
            let age = (self.births - segment.birth) as f64;
            let worth = age * f64::from(room - live_rows) / f64::from(room + live_rows);
            if best.is_none_or(|(most, _)| worth > most) {
                best = Some((worth, Victim { place, sequence: segment.sequence, live_rows }));
            }
        }
        best.map(|(_, victim)| victim)
    }

    /// Bytes of the log, by state.
    pub(super) fn space(&self, live: &LiveCounts) -> LogSpace {
        let place_bytes = self.geometry.place_bytes() as u64;
        let rows: u64 = (0..self.segments.len() as u32).map(|place| u64::from(live.of(place))).sum();
        let free = (self.free.len() + self.resting.len()) as u64;
        let hollow = self.hollow.len() as u64;
        let pinned = self.pinned.len() as u64;
        LogSpace {
            live: rows * self.geometry.stride() as u64,
            packed: rows * self.geometry.packed_row_bytes() as u64,
            used: (self.segments.len() as u64 - free - pinned) * place_bytes,
            pinned: pinned * place_bytes,
            free: (free - hollow) * place_bytes,
        }
    }

    /// Take free places out of use so that they can be returned to the file system: all at the end of the
    /// file, and all others but `kept`, the highest first. Returns runs as (first place, count).
    pub(super) fn take_free(&mut self, kept: usize) -> Vec<(u32, u32)> {
        let places = self.segments.len() as u32;
        let mut end = places;
        while end > 0 && self.free.remove(&(end - 1)) {
            end -= 1;
            self.hollow.remove(&end);
        }
        let mut runs = Vec::new();
        if end < places {
            runs.push((end, places - end));
        }
        let surplus = (self.free.len() - self.hollow.len()).saturating_sub(kept);
        let whole = self.free.iter().rev().filter(|place| !self.hollow.contains(place));
        for place in whole.take(surplus).copied().collect::<Vec<_>>() {
            self.free.remove(&place);
            match runs.last_mut() {
                Some((first, count)) if *first == place + 1 => (*first, *count) = (place, *count + 1),
                _ => runs.push((place, 1)),
            }
        }
        runs
    }

    /// The file system took back a run from [`SegmentTable::take_free`] (`given`) or refused it. Places at
    /// the end of the file are removed; others become free again.
    pub(super) fn discarded(&mut self, first: u32, count: u32, given: bool) {
        if self.segments.len() as u32 == first + count {
            self.segments.truncate(first as usize);
            return;
        }
        self.free.extend(first..first + count);
        if given {
            self.hollow.extend(first..first + count);
        }
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.checksum_bytes
            + self.segments.capacity() * size_of::<Segment>()
            + (self.free.len() + self.hollow.len() + self.resting.capacity() + self.pinned.capacity())
                * size_of::<(u64, u32)>()
    }
}
