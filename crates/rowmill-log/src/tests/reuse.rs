//! When segments may be overwritten, and that reads, flushes and tail buffers agree on the location of rows.

use std::collections::BTreeSet;

use super::super::live_counts::LiveCounts;
use super::super::reading::Readings;
use super::super::segment_table::SegmentTable;
use super::*;

const STRIDE: usize = 512;

fn open(device: &Arc<dyn Device>, state: &LogState) -> Log {
    Log::open(device.clone(), config(STRIDE), state).unwrap()
}

fn release(log: &Log, numbers: &[u32]) {
    for number in numbers {
        log.release(*number);
    }
}

fn place(log: &Log, number: u32) -> u32 {
    log.geometry().locate(number).0
}

#[test]
fn rows_read_back_from_open_sealed_and_written_segments() {
    let device = Faulty::new(memory_device());
    let log = Log::open(device.clone(), config(STRIDE), &LogState::default()).unwrap();
    let per_segment = u64::from(log.geometry().rows_per_segment());
    let mut numbers = append(&log, 0..per_segment);
    log.flush().unwrap();
    device.set(|faults| faults.hold_writes = true);
    numbers.extend(append(&log, per_segment..2 * per_segment + 1));
    device.await_held_write();
    let wanted: Vec<_> = (0..).zip(&numbers).map(|(id, number)| (*number, key(id))).collect();
    for (id, result) in (0..).zip(read(&log, &wanted)) {
        assert_eq!(result.unwrap(), row(STRIDE, id, 0));
    }
    let counts = log.counts();
    assert_eq!((counts.tail_hits, counts.rows_read), (per_segment + 1, per_segment));
    device.set(|faults| faults.hold_writes = false);
    log.flush().unwrap();
    assert!(read(&log, &wanted).iter().all(Result::is_ok));
    assert_eq!(log.counts().tail_hits, per_segment + 1, "everything is on the device now");
}

#[test]
fn a_block_is_read_once_per_call_in_order() {
    let device = Faulty::new(memory_device());
    let log = Log::open(device.clone(), config(STRIDE), &LogState::default()).unwrap();
    let per_segment = u64::from(log.geometry().rows_per_segment());
    let numbers = append(&log, 0..3 * per_segment);
    log.flush().unwrap();
    device.set(|faults| faults.spans_read.clear());
    let mut wanted: Vec<_> = (0..).zip(&numbers).map(|(id, number)| (*number, key(id))).collect();
    wanted.reverse();
    wanted.extend_from_within(..20);
    for ((_, wanted), result) in wanted.iter().zip(read(&log, &wanted)) {
        assert_eq!(result.unwrap(), row(STRIDE, wanted.id, 0));
    }
    let spans = std::mem::take(&mut device.faults.lock().spans_read);
    assert_eq!(spans.len() as u64, 3 * u64::from(log.geometry().data_blocks()));
    assert!(spans.is_sorted_by_key(|span| span.offset));
    assert_eq!(log.counts().blocks_read, spans.len() as u64, "checksums of fresh segments are in memory");
}

#[test]
fn a_short_segment_reads_back_and_costs_only_its_blocks() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let numbers = append(&log, 0..9);
    let state = checkpoint(&log);
    let geometry = *log.geometry();
    assert_eq!(log.counts().bytes_written, (2 + u64::from(geometry.trailer_blocks())) * BLOCK_BYTES as u64);
    drop(log);
    let log = open(&device, &state);
    assert_eq!(read_one(&log, numbers[8], 8).unwrap(), row(STRIDE, 8, 0));
    let beyond = numbers[8] + 1;
    assert!(matches!(read_one(&log, beyond, 9), Err(LogError::Moved { number, .. }) if number == beyond));
    let mut retaining = log.retaining();
    assert!(retaining.row(numbers[8]) && !retaining.row(beyond) && !retaining.row(u32::MAX));
    retaining.finish();
    assert_eq!(log.space().live, STRIDE as u64, "the one row that is there");
}

#[test]
fn segments_of_no_checkpoint_are_reused_at_once() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let per_segment = u64::from(log.geometry().rows_per_segment());
    let first = append(&log, 0..per_segment);
    let second = append(&log, 0..per_segment);
    log.flush().unwrap();
    release(&log, &first);
    assert_eq!(log.space().free, log.geometry().place_bytes() as u64);
    assert!(matches!(read_one(&log, first[0], 0), Err(LogError::Moved { .. })));
    assert_eq!(append(&log, 0..1), first[..1], "the lowest place first");
    assert_eq!(read_one(&log, second[3], 3).unwrap(), row(STRIDE, 3, 0));
}

#[test]
fn segments_of_a_checkpoint_are_reused_after_the_next_one() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let first = append(&log, 0..3);
    let state = checkpoint(&log);
    release(&log, &first);
    assert_eq!(log.space().pinned, log.geometry().place_bytes() as u64);
    let second = append(&log, 0..3);
    assert_ne!(place(&log, second[0]), place(&log, first[0]));
    let cut = log.cut();
    log.flush().unwrap();
    assert_eq!(
        log.space().pinned,
        log.geometry().place_bytes() as u64,
        "the new checkpoint is not durable yet"
    );
    // The first checkpoint stays readable until the second one is durable.
    let reader = open(&device, &state);
    assert_eq!(read_one(&reader, first[2], 2).unwrap(), row(STRIDE, 2, 0));
    log.sync().unwrap();
    let named: Vec<u32> = log.state(cut).segments.iter().map(|segment| segment.place).collect();
    assert_eq!(named, [place(&log, second[0])]);
    log.checkpoint_durable(cut);
    assert_eq!(log.space().pinned, 0);
    assert_eq!(append(&log, 0..1), first[..1]);
}

#[test]
fn segments_freed_during_a_checkpoint_are_reused_after_the_next_one() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let before = append(&log, 0..3);
    let cut = log.cut();
    // A frozen row whose current version is in memory is appended for the checkpoint only.
    let frozen = append(&log, 10..11);
    release(&log, &frozen);
    release(&log, &before);
    log.flush().unwrap();
    log.sync().unwrap();
    let state = log.state(cut);
    assert_eq!(state.segments.len(), 2);
    log.checkpoint_durable(cut);
    assert_eq!(log.space().pinned, 2 * log.geometry().place_bytes() as u64);
    append(&log, 20..40);
    log.flush().unwrap();
    let reader = open(&device, &state);
    assert_eq!(read_one(&reader, before[1], 1).unwrap(), row(STRIDE, 1, 0));
    assert_eq!(read_one(&reader, frozen[0], 10).unwrap(), row(STRIDE, 10, 0));
    let _ = checkpoint(&log);
    assert_eq!(log.space().pinned, 0);
}

#[test]
fn a_failed_checkpoint_frees_nothing_and_the_next_one_does() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let first = append(&log, 0..3);
    let _ = checkpoint(&log);
    release(&log, &first);
    let _failed = log.cut();
    let during = append(&log, 0..3);
    log.flush().unwrap();
    release(&log, &during);
    assert_eq!(log.space().pinned, 2 * log.geometry().place_bytes() as u64);
    let _ = checkpoint(&log);
    assert_eq!(log.space().pinned, 0);
}

#[test]
fn a_segment_is_not_reused_while_it_is_read() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let first = append(&log, 0..3);
    log.flush().unwrap();
    let reading = log.reading();
    release(&log, &first);
    let second = append(&log, 0..3);
    assert_ne!(place(&log, second[0]), place(&log, first[0]));
    log.flush().unwrap();
    drop(reading);
    assert_eq!(append(&log, 0..1), first[..1]);
}

#[test]
fn a_stale_row_number_in_a_reused_segment_is_moved() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let first = append(&log, 0..3);
    log.flush().unwrap();
    release(&log, &first);
    assert_eq!(append(&log, 7..8), first[..1]);
    assert!(matches!(read_one(&log, first[0], 0), Err(LogError::Moved { .. })), "another row is there");
    assert!(matches!(read_one(&log, first[1], 1), Err(LogError::Moved { .. })), "no row is there yet");
}

#[test]
fn a_segment_emptied_before_it_is_written_is_reused_after() {
    let device = Faulty::new(memory_device());
    let log = Log::open(device.clone(), config(STRIDE), &LogState::default()).unwrap();
    device.set(|faults| faults.hold_writes = true);
    let per_segment = u64::from(log.geometry().rows_per_segment());
    let first = append(&log, 0..per_segment);
    release(&log, &first);
    let second = append(&log, 0..1);
    assert_eq!(place(&log, second[0]), 1, "the first place is still being written");
    device.set(|faults| faults.hold_writes = false);
    log.flush().unwrap();
    assert_eq!(append(&log, 0..1), first[..1]);
}

#[test]
fn a_checkpoint_without_a_row_of_a_segment_frees_it_after_reopening() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let numbers = append(&log, 0..3);
    let state = checkpoint(&log);
    drop(log);
    let log = open(&device, &state);
    log.loaded();
    assert_eq!(log.space().pinned, log.geometry().place_bytes() as u64);
    assert_ne!(place(&log, append(&log, 0..1)[0]), place(&log, numbers[0]));
    let _ = checkpoint(&log);
    assert_eq!(log.space().pinned, 0);
}

#[test]
fn sequence_numbers_differ_after_every_opening() {
    let device = memory_device();
    let mut first_blocks = Vec::new();
    for incarnation in [5, 6] {
        let config = LogConfig { incarnation, ..config(STRIDE) };
        let log = Log::open(device.clone(), config, &LogState::default()).unwrap();
        append(&log, 0..1);
        let state = checkpoint(&log);
        assert_eq!(state.segments[0].place, 0);
        first_blocks.push(state.segments[0].sequence);
    }
    assert_ne!(first_blocks[0], first_blocks[1]);
}

#[test]
fn free_segments_at_the_end_are_truncated() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let per_segment = u64::from(log.geometry().rows_per_segment());
    let place_bytes = log.geometry().place_bytes() as u64;
    let numbers = append(&log, 0..4 * per_segment);
    log.flush().unwrap();
    let reading = log.reading();
    release(&log, &numbers[per_segment as usize..]);
    assert_eq!(log.discard_free(u64::MAX), 0, "a reader may look into the places");
    drop(reading);
    assert_eq!(log.discard_free(u64::MAX), 3 * place_bytes);
    let space = log.space();
    assert_eq!((space.used, space.free), (place_bytes, 0));
    assert_eq!(read_one(&log, numbers[0], 0).unwrap(), row(STRIDE, 0, 0));
    let more = append(&log, 0..2 * per_segment);
    log.flush().unwrap();
    assert_eq!(read_one(&log, more[0], 0).unwrap(), row(STRIDE, 0, 0));
}

#[test]
fn a_reader_of_a_whole_segment_holds_only_that_segment() {
    let log = open(&memory_device(), &LogState::default());
    let per_segment = u64::from(log.geometry().rows_per_segment());
    let place_bytes = log.geometry().place_bytes() as u64;
    let numbers = append(&log, 0..4 * per_segment);
    log.flush().unwrap();
    let mut visited = 0;
    log.segment_rows(0, &mut |_, _, _| {
        if visited == 0 {
            release(&log, &numbers);
            assert_eq!(log.discard_free(0), 3 * place_bytes, "what this reads, and no more, is held");
            assert_eq!(log.space().free, place_bytes);
        }
        visited += 1;
    })
    .unwrap();
    assert_eq!(visited, per_segment);
    assert_eq!(log.discard_free(0), place_bytes);
}

#[test]
fn free_segments_within_the_file_are_discarded_except_reserves() {
    let device = Faulty::new(memory_device());
    let log = Log::open(device.clone(), config(STRIDE), &LogState::default()).unwrap();
    let per_segment = u64::from(log.geometry().rows_per_segment());
    let place_bytes = log.geometry().place_bytes() as u64;
    let numbers = append(&log, 0..5 * per_segment);
    log.flush().unwrap();
    let bytes = device.bytes();
    release(&log, &numbers[per_segment as usize..4 * per_segment as usize]);
    append(&log, 0..1);
    assert_eq!(log.space().free, 2 * place_bytes, "the open segment has one of three");
    device.set(|faults| faults.fail_discard = true);
    assert_eq!(log.discard_free(0), 0);
    assert_eq!(log.space().free, 2 * place_bytes, "a refusal costs nothing");
    device.set(|faults| faults.fail_discard = false);
    let is_hollow = |place| {
        let block = block_at(&device.inner, log.geometry().place_offset(place));
        block.iter().all(|byte| *byte == 0)
    };
    assert_eq!(log.discard_free(place_bytes), place_bytes, "one is kept");
    assert_eq!((is_hollow(2), is_hollow(3), log.space().free), (false, true, place_bytes));
    assert_eq!(log.discard_free(place_bytes), 0, "places that were returned do not count as kept");
    assert_eq!(log.discard_free(0), place_bytes);
    assert_eq!((is_hollow(2), log.space().free, log.space().used), (true, 0, 3 * place_bytes));
    let more = append(&log, 0..3 * per_segment);
    log.flush().unwrap();
    assert_eq!(device.bytes(), bytes + place_bytes, "the places were written again");
    for (numbers, id) in
        [(&numbers, 0), (&numbers, 5 * per_segment - 1), (&more, 0), (&more, 2 * per_segment)]
    {
        assert_eq!(read_one(&log, numbers[id as usize], id).unwrap(), row(STRIDE, id, 0));
    }
}

#[test]
fn cleaning_moves_live_rows_and_frees_the_victim() {
    let device = memory_device();
    let log = open(&device, &LogState::default());
    let per_segment = u64::from(log.geometry().rows_per_segment());
    assert_eq!(log.victim(), None);
    let numbers = append(&log, 0..4 * per_segment);
    log.flush().unwrap();
    assert_eq!(log.victim(), None, "every segment is full of live rows");
    // Shares of live rows of the four segments: 1/2, 1/4, 1, 1.
    let (half, quarter) = (per_segment as usize / 2, per_segment as usize / 4);
    release(&log, &numbers[..half]);
    release(&log, &numbers[per_segment as usize + quarter..2 * per_segment as usize]);
    let victim = log.victim().unwrap();
    assert_eq!((victim.place, u64::from(victim.live_rows)), (1, quarter as u64));
    let claim = log.claim(victim).unwrap();
    assert!(log.claim(victim).is_none(), "it is claimed");
    assert_eq!(log.victim().unwrap().place, 0, "another thread is offered another segment");
    drop(claim);
    assert_eq!(log.victim(), Some(victim));
    let mut moved = Vec::new();
    log.segment_rows(victim.place, &mut |number, owner, bytes| {
        assert_eq!(bytes, row(STRIDE, owner.id, 0));
        if owner.id < per_segment + quarter as u64 {
            moved.push((log.append_moved(owner, bytes).unwrap(), owner));
            log.release(number);
        }
    })
    .unwrap();
    assert_eq!(moved.len(), quarter);
    assert_eq!(log.victim().unwrap().place, 0);
    assert!(read(&log, &moved).iter().all(Result::is_ok));
    assert!(matches!(log.segment_rows(victim.place, &mut |_, _, _| ()), Err(LogError::Moved { .. })));
}

#[test]
fn moved_rows_get_their_own_segments_even_with_one_buffer() {
    for (tail_buffers, writer_thread) in
        [1, 2, 3].into_iter().flat_map(|buffers| [(buffers, true), (buffers, false)])
    {
        let config = LogConfig { tail_buffers, writer_thread, ..config(STRIDE) };
        let log = Log::open(memory_device(), config, &LogState::default()).unwrap();
        let mut rows = Vec::new();
        for id in 0..200 {
            let bytes = row(STRIDE, id, 0);
            let number = match id % 3 {
                0 => log.append_moved(key(id), &bytes),
                _ => log.append(key(id), &bytes),
            };
            rows.push((number.unwrap(), key(id)));
        }
        log.flush().unwrap();
        assert!(!log.write_one(), "nothing is left to write");
        for ((_, key), result) in rows.iter().zip(read(&log, &rows)) {
            assert_eq!(result.unwrap(), row(STRIDE, key.id, 0));
        }
        let places = |moved: bool| -> BTreeSet<u32> {
            let of_kind = rows.iter().filter(|(_, key)| (key.id % 3 == 0) == moved);
            of_kind.map(|(number, _)| place(&log, *number)).collect()
        };
        assert!(places(true).is_disjoint(&places(false)));
    }
}

#[test]
fn memory_for_checksums_is_limited() {
    let device = memory_device();
    let config = LogConfig { checksum_bytes_max: 200, ..config(4096) };
    let log = Log::open(device, config, &LogState::default()).unwrap();
    let fixed = log.bytes();
    let numbers = append(&log, 0..3 * 100);
    log.flush().unwrap();
    let wanted: Vec<_> = (0..).zip(&numbers).map(|(id, number)| (*number, key(id))).collect();
    for _ in 0..3 {
        assert!(read(&log, &wanted).iter().all(Result::is_ok));
    }
    let segments = 300u64.div_ceil(u64::from(log.geometry().rows_per_segment()));
    let trailers = log.counts().blocks_read - 3 * 300;
    assert!(
        trailers > 2 * segments && trailers <= 3 * segments,
        "{trailers} trailers of {segments} segments"
    );
    let per_entry = 150;
    assert!(
        log.bytes() < fixed + 200 + 300 * per_entry + segments as usize * 2 * per_entry,
        "{}",
        log.bytes()
    );
}

#[test]
fn rows_appended_after_its_state_do_not_belong_to_a_waiting_checkpoint() {
    let log = Log::open(memory_device(), config(STRIDE), &LogState::default()).unwrap();
    let per_segment = u64::from(log.geometry().rows_per_segment());
    append(&log, 0..2 * per_segment);
    let cut = log.cut();
    log.flush().unwrap();
    log.sync().unwrap();
    // A segment on its way to the device when the state is taken: it could hold rows of the checkpoint, but
    // does not.
    let mut numbers = append(&log, 0..per_segment / 2);
    let state = log.state(cut);
    assert_eq!(state.segments.len(), 2);
    for _ in 0..50 {
        numbers.extend(append(&log, 0..per_segment));
        log.flush().unwrap();
        numbers.drain(..).for_each(|number| log.release(number));
    }
    let place_bytes = log.geometry().place_bytes() as u64;
    let space = log.space();
    assert_eq!((space.used, space.pinned), (2 * place_bytes, 0), "{space:?}");
    assert!(space.free <= 4 * place_bytes, "{space:?}");
    // The state names the same segments now and after the checkpoint is durable.
    assert_eq!(log.state(cut).segments, state.segments);
    log.checkpoint_durable(cut);
    assert_eq!(log.space().used, 2 * place_bytes);
}

#[test]
fn running_out_of_row_numbers_is_an_error_without_damage() {
    let geometry = Geometry::new(1, 1 << 20);
    let (live, readings) = (LiveCounts::default(), Readings::default());
    let config = LogConfig::for_reading(0, geometry, 0);
    let mut table = SegmentTable::new(&config, &LogState::default(), &live).unwrap();
    let places = geometry.places_max(ROW_NUMBERS);
    for place in 0..places {
        assert_eq!(table.free_places(), places - place);
        let (opened, _) = table.open(0, &live, &readings).unwrap();
        assert_eq!(opened, place);
    }
    assert!(u64::from(geometry.number(places - 1, geometry.rows_per_segment() - 1)) < 1 << 31);
    assert_eq!(table.open(0, &live, &readings), None);
    table.sealed(5, 1, &live, &readings);
    table.written(5, Box::from([0]), &readings);
    assert_eq!(table.open(0, &live, &readings).map(|(place, _)| place), Some(5));
}
