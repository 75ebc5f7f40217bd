//! Which segment lies in which place, which places may be written again, and which segment to clean.
//!
//! Invariants:
//! - A sequence number is given out once in the life of the file, crashes included.
//! - A place that a durable checkpoint names is not written until a later checkpoint is durable and nobody
//!   has the earlier one pinned.
//! - A place is not written while a reader that may have looked up a row in it is reading.
//! - The lowest place is reused first, so that a file whose rows become fewer ends in free places.
//!
//! Epochs: a *cut* ends epoch `c`. Until checkpoint `c` is durable, what is appended in epoch `c + 1` may
//! still be named by it (frozen rows reach the log after the cut), so every segment remembers the last
//! checkpoint that may name it. One that is freed before any cut could name it is reusable at once; any
//! other one waits for a checkpoint whose cut came after the freeing.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use super::LogConfig;
use super::geometry::Geometry;
use super::live_counts::LiveCounts;
use super::reading::Readings;
use super::state::{LogState, SegmentRecord};

/// Sequence numbers skipped at most when a log is opened.
const INCARNATION_BITS: u32 = 40;

/// Where the rows of a segment are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts<'a> {
    /// In a tail buffer, as long as the buffer still holds `sequence`.
    Tail { buffer: u32, sequence: u64 },
    /// On the device; the checksums are there unless they have to be read from the trailer.
    Device { sequence: u64, rows: u32, checksums: Option<&'a [u32]> },
    /// Nowhere: the place holds no segment.
    Nowhere,
}

/// Bytes of the log by what may become of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSpace {
    /// Rows that are retained, without trailers and padding.
    pub live: u64,
    /// The same with the bytes at the end of each block that no further row fits into.
    pub packed: u64,
    /// Places of segments with retained rows.
    pub used: u64,
    /// Places that wait for a checkpoint before they can be written again.
    pub pinned: u64,
    /// Places that can be written, now or as soon as the readers of today are done, and whose bytes the file
    /// system does not have back.
    pub free: u64,
}

/// A segment worth cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Where it lies.
    pub place: u32,
    /// Its sequence number.
    pub sequence: u64,
    /// Rows that have to move.
    pub live_rows: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Status {
    /// No segment, or one that no reader may look into any more.
    #[default]
    Empty,
    /// In a tail buffer: still taking rows, or sealed and on its way to the device.
    Tail { buffer: u32, sealed: bool },
    /// On the device.
    Written,
}

#[derive(Debug, Default)]
struct Segment {
    status: Status,
    sequence: u64,
    /// How many segments this log had opened before; ages are differences of it.
    birth: u64,
    /// Set when sealed.
    rows: u32,
    /// The last checkpoint that may name this segment.
    named_until: u64,
    /// Epoch in which the last retained row went.
    freed_in: Option<u64>,
    /// Found corrupt: cleaning it again would fail again.
    damaged: bool,
    /// Which write this was, counted from 1; 0 for those of the checkpoint the log was opened at.
    written_as: u64,
    checksums: Option<Box<[u32]>>,
    /// Checksums asked for since the hand last came by.
    recent: AtomicBool,
}

#[derive(Debug)]
pub(super) struct SegmentTable {
    geometry: Geometry,
    segments: Vec<Segment>,
    /// Places that row numbers can name.
    places_max: u32,
    free: BTreeSet<u32>,
    /// Of the free places, those whose bytes the file system has back.
    hollow: BTreeSet<u32>,
    /// Freed places that wait for readers, oldest first, with their stamps.
    resting: VecDeque<(u64, u32)>,
    /// Freed places that wait for a checkpoint, with the epoch they were freed in.
    pinned: Vec<(u64, u32)>,
    /// Durable checkpoints whose segments somebody copies, as often as they were pinned.
    pins: Vec<u64>,
    /// The last checkpoint known to be durable.
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
    /// Next place whose checksums may be forgotten.
    hand: usize,
}

impl SegmentTable {
    /// The table of a checkpoint. The incarnation differs from open to open, so that what a crash left in
    /// free places never carries a sequence number given out again.
    pub(super) fn new(config: &LogConfig, state: &LogState, live: &LiveCounts) -> Result<Self, String> {
        let &LogConfig { geometry, incarnation, checksum_bytes_max, row_numbers, .. } = config;
        let skip = 1 + (incarnation & ((1 << INCARNATION_BITS) - 1));
        let next_sequence = state.next_sequence.checked_add(skip).ok_or("sequence numbers ran out")?;
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
            epoch: state.cut.checked_add(1).ok_or("epochs ran out")?,
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
            return Err(format!("place {place} of {}", self.places_max));
        }
        if rows == 0 || rows > self.geometry.rows_per_segment() {
            return Err(format!(
                "{rows} rows in place {place}, which has room for {}",
                self.geometry.rows_per_segment()
            ));
        }
        if sequence >= state.next_sequence {
            return Err(format!("segment {sequence} of {}", state.next_sequence));
        }
        self.cover(place, live);
        if self.segments[place as usize].status != Status::Empty {
            return Err(format!("two segments in place {place}"));
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

    /// Have an entry and a counter for every place up to `place`.
    fn cover(&mut self, place: u32, live: &LiveCounts) {
        for place in self.segments.len() as u32..=place {
            live.cover(place);
            self.segments.push(Segment::default());
        }
    }

    /// Give the lowest reusable place, or a new one, to a segment that tail buffer `buffer` collects;
    /// its place and sequence number, `None` when row numbers have run out.
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
            panic!("place {place} is sealed once, while it is open: {:?}", segment.status)
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

    /// The last retained row of `place` may have gone.
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

    /// Queue a freed place that is not being written for reuse.
    fn retire(&mut self, place: u32, readings: &Readings) {
        self.forget(place);
        let segment = &self.segments[place as usize];
        let freed_in = segment.freed_in.expect("only freed places retire");
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

    /// Free the places that no reader can be looking into any more.
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

    /// End the epoch; its number names the checkpoint.
    pub(super) fn cut(&mut self) -> u64 {
        let cut = self.epoch;
        self.epoch += 1;
        self.checkpointing = Some(cut);
        cut
    }

    /// Checkpoint `cut` is durable: what was freed before it is no longer named by anything.
    pub(super) fn checkpoint_durable(&mut self, cut: u64, readings: &Readings) {
        if self.checkpointing.is_some_and(|current| current <= cut) {
            self.checkpointing = None;
        }
        self.durable = self.durable.max(cut);
        self.let_go(readings);
    }

    /// Write nothing over the segments of durable checkpoint `cut` until it is unpinned.
    pub(super) fn pin(&mut self, cut: u64) {
        self.pins.push(cut);
    }

    /// Take back one [`SegmentTable::pin`] of `cut`.
    pub(super) fn unpin(&mut self, cut: u64, readings: &Readings) {
        let at = self.pins.iter().position(|&pin| pin == cut).expect("what is unpinned was pinned");
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

    /// Segments written so far.
    pub(super) fn segments_written(&self) -> u64 {
        self.segments_written
    }

    /// The first `written` segments are durable.
    pub(super) fn synced(&mut self, written: u64) {
        self.segments_durable = self.segments_durable.max(written);
    }

    /// What checkpoint `cut` names: durable segments that held its rows when it was cut, or may have
    /// been given some since. Segments written later are not named by it: a prepared checkpoint may wait for a long time
    /// before it becomes durable, and must not pin them.
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

    /// Free every segment without a retained row, once after the index of a checkpoint was loaded.
    pub(super) fn loaded(&mut self, live: &LiveCounts, readings: &Readings) {
        for place in 0..self.segments.len() as u32 {
            self.emptied(place, live, readings);
        }
    }

    /// Places that can be written now.
    pub(super) fn free_places(&self) -> u32 {
        (self.free.len() + self.places_max as usize - self.segments.len()) as u32
    }

    /// Row numbers in places that cannot be written now, and all row numbers.
    pub(super) fn row_numbers(&self) -> (u64, u64) {
        let rows = |places: u32| u64::from(places) * u64::from(self.geometry.rows_per_segment());
        (rows(self.places_max - self.free_places()), rows(self.places_max))
    }

    /// Places there are, of segments and free ones.
    pub(super) fn places(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Where the rows of the segment in `place` are to be read.
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

    /// Keep the checksums of segment `sequence` for the next reader.
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
        // Second chance: one turn clears the marks, so two turns always find something to forget.
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

    /// Do not offer `place` for cleaning again.
    pub(super) fn damaged(&mut self, place: u32, sequence: u64) {
        let segment = &mut self.segments[place as usize];
        segment.damaged |= segment.sequence == sequence;
    }

    /// The segment whose cleaning pays most: space won times the time it will last, for the work of
    /// reading it and writing the rest (Rosenblum and Ousterhout, The design and implementation of a
    /// log-structured file system, 1991, section 3.6). Picking the emptiest one instead moves 2.4 times as
    /// many rows when a tenth of the rows takes 90 % of the changes, and as many when all rows change alike.
    ///
    /// Looks at every place (about 10 ns each); a log of 100 Ki segments would want a heap.
    pub(super) fn victim(&self, live: &LiveCounts) -> Option<Victim> {
        let room = self.geometry.rows_per_segment();
        let mut best: Option<(f64, Victim)> = None;
        for (place, segment) in (0..).zip(&self.segments) {
            if segment.status != Status::Written || segment.freed_in.is_some() || segment.damaged {
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

    /// Bytes by what may become of them.
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

    /// Take free places out of use that are to be given back to the file system, as runs of the first place
    /// and their number: those at the end of the file, and within it all but `kept`, the highest first.
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

    /// A run from [`SegmentTable::take_free`] was `given` back to the file system, or refused. At the end of
    /// the file its places are no more; elsewhere they are free again.
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

    /// Memory held.
    pub(super) fn bytes(&self) -> usize {
        self.checksum_bytes
            + self.segments.capacity() * size_of::<Segment>()
            + (self.free.len() + self.hollow.len() + self.resting.capacity() + self.pinned.capacity())
                * size_of::<(u64, u32)>()
    }
}
