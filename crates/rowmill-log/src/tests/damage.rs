//! Faults of the device: each must give an error, never wrong data.

use std::sync::Arc;

use super::super::LogSpace;
use super::super::error::{Damage, PoisonCause, SegmentPart};
use super::*;

/// A log of rows of 64 bytes whose first two segments are on the device. It is reopened, so none of them is
/// in memory.
struct Damaged {
    device: Arc<Faulty>,
    state: LogState,
    numbers: Vec<u32>,
}

impl Damaged {
    fn new() -> Self {
        Self::of_stride(64)
    }

    fn of_stride(stride: usize) -> Self {
        let device = Faulty::new(memory_device());
        let log = Log::open(device.clone(), config(stride), &LogState::default()).unwrap();
        let numbers = append(&log, 0..2 * u64::from(log.geometry().rows_per_segment()));
        let state = checkpoint(&log);
        Self { device, state, numbers }
    }

    fn open(&self, stride: usize) -> Log {
        let log = Log::open(self.device.clone(), config(stride), &self.state).unwrap();
        let mut retaining = log.retaining();
        assert!(self.numbers.iter().all(|number| retaining.row(*number)));
        retaining.finish();
        log.loaded();
        log
    }

    /// The result of reading row `at`. Asserts that the neighbour `healthy` can be read in the same call.
    fn read_beside(&self, log: &Log, at: usize, healthy: usize) -> Result<Vec<u8>, LogError> {
        let wanted = [(self.numbers[at], key(at as u64)), (self.numbers[healthy], key(healthy as u64))];
        let mut results = read(log, &wanted);
        let stride = log.geometry().stride();
        assert_eq!(
            results.pop().unwrap().unwrap(),
            row(stride, healthy as u64, 0),
            "healthy rows stay readable"
        );
        results.pop().unwrap()
    }
}

fn assert_corrupt(result: Result<Vec<u8>, LogError>, place_wanted: u32, part_wanted: SegmentPart) -> Damage {
    match result {
        Err(LogError::Corrupt { group: 7, place, part, fault, .. }) => {
            assert_eq!((place, part), (place_wanted, part_wanted));
            fault
        }
        other => panic!("expected damage in {part_wanted}, got {other:?}"),
    }
}

#[test]
fn a_flipped_bit_in_a_block_is_an_error_that_names_it() {
    let damaged = Damaged::new();
    damaged.device.edit(4096, |block| block[77] ^= 4);
    let log = damaged.open(64);
    let fault = assert_corrupt(damaged.read_beside(&log, 64, 0), 0, SegmentPart::Block(1));
    assert!(matches!(fault, Damage::Checksum { expected, found } if expected != found));
    assert_eq!(log.counts().corrupt, 1);
    let text = read_one(&log, damaged.numbers[64], 64).unwrap_err().to_string();
    assert!(text.contains("group 7") && text.contains("place 0, block 1"), "{text}");
}

#[test]
fn the_damaged_block_of_a_wide_row_is_named() {
    let damaged = Damaged::of_stride(5000);
    damaged.device.edit(4096, |block| block[900] ^= 1);
    let log = damaged.open(5000);
    assert_corrupt(damaged.read_beside(&log, 0, 1), 0, SegmentPart::Block(1));
}

#[test]
fn a_flipped_bit_in_a_trailer_fails_only_its_segment() {
    let damaged = Damaged::new();
    let trailer = config(64).geometry.trailer_offset() as u64;
    damaged.device.edit(trailer, |block| block[50] ^= 1);
    let log = damaged.open(64);
    let second = log.geometry().rows_per_segment() as usize;
    assert_corrupt(damaged.read_beside(&log, 0, second), 0, SegmentPart::Trailer);
}

#[test]
fn a_flipped_bit_in_a_key_fails_the_scan_but_not_the_rows() {
    let damaged = Damaged::new();
    let geometry = config(64).geometry;
    let end = geometry.place_bytes() as u64 - 4096;
    damaged.device.edit(end, |block| block[1000] ^= 1);
    let log = damaged.open(64);
    assert_eq!(read_one(&log, damaged.numbers[0], 0).unwrap(), row(64, 0, 0));
    let result = log
        .segment_rows(0, &mut |_, _, _| panic!("rows are visited although their keys are damaged"))
        .map(|()| Vec::new());
    assert_corrupt(result, 0, SegmentPart::Trailer);
}

#[test]
fn a_stale_block_is_an_error() {
    let damaged = Damaged::new();
    let before = block_at(&damaged.device.inner, 0);
    let log = damaged.open(64);
    for number in &damaged.numbers {
        log.release(*number);
    }
    checkpoint(&log);
    // The same rows in the same place, so that only the sequence number differs.
    let again = append(&log, 0..u64::from(log.geometry().rows_per_segment()));
    assert_eq!(again[0], damaged.numbers[0]);
    let state = checkpoint(&log);
    drop(log);
    assert_eq!(block_at(&damaged.device.inner, 0), before, "the content is equal");
    let log = Log::open(damaged.device.clone(), config(64), &damaged.state).unwrap();
    let fault = assert_corrupt(read_one(&log, again[0], 0), 0, SegmentPart::Trailer);
    assert!(matches!(fault, Damage::Field { field: "sequence number", .. }), "{fault}");
    // A lost write of one block under a newer trailer.
    damaged.device.edit(0, |block| block.copy_from_slice(&[0; BLOCK_BYTES]));
    let log = Log::open(damaged.device.clone(), config(64), &state).unwrap();
    assert_corrupt(read_one(&log, again[0], 0), 0, SegmentPart::Block(0));
}

#[test]
fn misdirected_reads_are_errors() {
    let damaged = Damaged::new();
    let geometry = config(64).geometry;
    let second = geometry.rows_per_segment() as usize;
    let log = damaged.open(64);
    damaged.device.set(|faults| faults.misdirect = Some((0, 4096)));
    assert_corrupt(damaged.read_beside(&log, 0, second), 0, SegmentPart::Block(0));
    damaged.device.set(|faults| faults.misdirect = Some((4096, geometry.place_offset(1) + 4096)));
    assert_corrupt(damaged.read_beside(&log, 64, second), 0, SegmentPart::Block(1));
    let trailer = |place| geometry.trailer_span(place, 1).offset;
    damaged.device.set(|faults| faults.misdirect = Some((trailer(0), trailer(1))));
    assert_corrupt(damaged.read_beside(&damaged.open(64), 0, second), 0, SegmentPart::Trailer);
}

#[test]
fn the_trailer_of_another_group_is_an_error() {
    let damaged = Damaged::new();
    let log =
        Log::open(damaged.device.clone(), LogConfig { group: 8, ..config(64) }, &damaged.state).unwrap();
    match read_one(&log, damaged.numbers[0], 0) {
        Err(LogError::Corrupt { group: 8, part: SegmentPart::Trailer, fault, .. }) => {
            assert!(matches!(fault, Damage::Field { field: "group", expected: 8, found: 7 }));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_error_fails_the_rows_of_its_block_only() {
    let damaged = Damaged::new();
    damaged.device.set(|faults| faults.unreadable = Some(0));
    let log = damaged.open(64);
    assert!(matches!(damaged.read_beside(&log, 0, 64), Err(LogError::Read { group: 7, .. })));
    damaged.device.set(|faults| faults.unreadable = None);
    assert_eq!(read_one(&log, damaged.numbers[0], 0).unwrap(), row(64, 0, 0));
}

#[test]
fn a_damaged_segment_delivers_its_intact_blocks_and_is_not_cleaned() {
    let damaged = Damaged::new();
    damaged.device.edit(4096, |block| block[0] ^= 1);
    let log = damaged.open(64);
    let per_segment = log.geometry().rows_per_segment();
    log.release(damaged.numbers[0]);
    log.release(damaged.numbers[per_segment as usize]);
    assert_eq!(log.victim().unwrap().place, 0, "the older of two equal ones");
    let mut seen = 0;
    let result = log.segment_rows(0, &mut |number, owner, bytes| {
        assert!((number, owner) == (damaged.numbers[owner.id as usize], key(owner.id)));
        assert_eq!(bytes, row(64, owner.id, 0));
        seen += 1;
    });
    assert_corrupt(result.map(|()| Vec::new()), 0, SegmentPart::Block(1));
    assert_eq!(seen, per_segment - 64);
    assert_eq!(log.victim().unwrap().place, 1);
}

#[test]
fn a_truncated_file_is_refused_at_once() {
    let damaged = Damaged::new();
    let short = memory_device();
    short.write(0, &block_at(&damaged.device.inner, 0)).unwrap();
    let error = Log::open(short, config(64), &damaged.state).unwrap_err();
    assert!(
        matches!(&error, LogError::BadState { reason, .. } if reason.contains("the file has 4096")),
        "{error}"
    );
}

#[test]
fn an_impossible_state_is_refused() {
    let damaged = Damaged::new();
    let good = &damaged.state;
    let mut twice = good.clone();
    twice.segments.push(good.segments[0]);
    let mut empty = good.clone();
    empty.segments[0].rows = 0;
    let mut crowded = good.clone();
    crowded.segments[0].rows = 1 << 20;
    let mut future = good.clone();
    future.next_sequence = 0;
    let mut far = good.clone();
    far.segments[0].place = u32::MAX;
    let mut late = good.clone();
    late.cut = u64::MAX;
    for bad in [twice, empty, crowded, future, far, late] {
        let error = Log::open(damaged.device.clone(), config(64), &bad).unwrap_err();
        assert!(matches!(error, LogError::BadState { group: 7, .. }), "{error}");
    }
}

#[test]
fn a_failed_write_poisons_the_log_and_rows_in_memory_stay_readable() {
    for full in [false, true] {
        let device = Faulty::new(memory_device());
        let log = Log::open(device.clone(), config(64), &LogState::default()).unwrap();
        let per_segment = u64::from(log.geometry().rows_per_segment());
        let healthy = append(&log, 0..per_segment);
        log.flush().unwrap();
        device.set(|faults| (faults.writes_left, faults.full) = (Some(0), full));
        let lost = append(&log, per_segment..per_segment + 10);
        let first = log.flush().unwrap_err();
        let LogError::Poisoned { cause, .. } = &first else { panic!("{first}") };
        assert_eq!(matches!(**cause, PoisonCause::Device(DeviceError::Full { .. })), full);
        device.set(|faults| faults.writes_left = None);
        let again = [log.flush(), log.sync(), log.append(key(0), &row(64, 0, 0)).map(drop)];
        for later in again {
            let LogError::Poisoned { cause: later, .. } = later.unwrap_err() else { panic!() };
            assert!(Arc::ptr_eq(cause, &later), "the first cause is kept");
        }
        assert_eq!(read_one(&log, healthy[5], 5).unwrap(), row(64, 5, 0));
        assert_eq!(read_one(&log, lost[9], per_segment + 9).unwrap(), row(64, per_segment + 9, 0));
    }
}

#[test]
fn appending_to_a_full_ring_ends_when_the_write_fails() {
    let device = Faulty::new(memory_device());
    let log = Log::open(device.clone(), config(64), &LogState::default()).unwrap();
    device.set(|faults| (faults.hold_writes, faults.writes_left) = (true, Some(0)));
    let per_segment = u64::from(log.geometry().rows_per_segment());
    append(&log, 0..3 * per_segment);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| log.append(key(0), &row(64, 0, 0)));
        device.await_held_write();
        device.set(|faults| faults.hold_writes = false);
        assert!(matches!(waiting.join().unwrap(), Err(LogError::Poisoned { .. })));
    });
}

#[test]
fn a_failed_sync_poisons_the_log_and_its_segments_are_not_in_the_state() {
    let device = Faulty::new(memory_device());
    let log = Log::open(device.clone(), config(64), &LogState::default()).unwrap();
    append(&log, 0..10);
    let cut = log.cut();
    log.flush().unwrap();
    device.set(|faults| faults.fail_sync = true);
    assert!(matches!(log.sync(), Err(LogError::Poisoned { .. })));
    assert_eq!(log.state(cut).segments, []);
    assert!(matches!(log.append(key(1), &row(64, 1, 0)), Err(LogError::Poisoned { .. })));
}

#[test]
fn a_log_opened_for_reading_refuses_rows() {
    let damaged = Damaged::new();
    let reader = LogConfig { tail_buffers: 0, ..config(64) };
    let log = Log::open(damaged.device.clone(), reader, &damaged.state).unwrap();
    assert_eq!(read_one(&log, damaged.numbers[1], 1).unwrap(), row(64, 1, 0));
    assert!(matches!(log.append(key(1), &row(64, 1, 0)), Err(LogError::ReadOnly { group: 7 })));
    log.flush().unwrap();
    assert_eq!(log.space(), LogSpace { live: 0, ..log.space() });
}
