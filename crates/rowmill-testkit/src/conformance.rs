//! What every volume and its devices must do, as functions over a new volume. Data read from a device is compared with a byte
//! array.

use std::io::{Read, Write};
use std::sync::Arc;

use rowmill_io::{BLOCK_BYTES, Device, DeviceError, Span, Volume};

use crate::Rng64;

/// A check of a new volume.
pub type Check = fn(&dyn Volume);

/// All checks but the random one, with their names.
pub const CHECKS: [(&str, Check); 9] = [
    ("a_device_returns_the_written_bytes", a_device_returns_the_written_bytes),
    ("buffers_of_any_alignment_can_be_written", buffers_of_any_alignment_can_be_written),
    (
        "a_batch_may_be_larger_than_the_queue_and_in_any_order",
        a_batch_may_be_larger_than_the_queue_and_in_any_order,
    ),
    (
        "holes_and_discarded_blocks_read_as_zeros_and_nothing_else_changes",
        holes_and_discarded_blocks_read_as_zeros_and_nothing_else_changes,
    ),
    (
        "reading_beyond_the_end_is_an_error_of_only_that_span",
        reading_beyond_the_end_is_an_error_of_only_that_span,
    ),
    ("the_callback_of_a_read_may_read_write_and_panic", the_callback_of_a_read_may_read_write_and_panic),
    ("threads_read_and_write_at_the_same_time", threads_read_and_write_at_the_same_time),
    ("files_are_replaced_listed_and_removed_by_name", files_are_replaced_listed_and_removed_by_name),
    ("a_volume_has_one_holder_at_a_time", a_volume_has_one_holder_at_a_time),
];

/// `count` blocks from `first`.
fn span(first: u64, count: usize) -> Span {
    Span { offset: first * BLOCK_BYTES as u64, bytes: count * BLOCK_BYTES }
}

/// More reads than any queue holds, and not a multiple of a queue's size.
const LARGE_BATCH: usize = 1_300;

/// More spans than a device plans at once.
const HUGE_BATCH: usize = 40_000;

/// Blocks that contain their number and version.
fn blocks(first: u64, count: usize, version: u8) -> Vec<u8> {
    let mut bytes = vec![version; count * BLOCK_BYTES];
    for (block, content) in bytes.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        content[..8].copy_from_slice(&(first + block as u64).to_le_bytes());
        content[BLOCK_BYTES - 8..].copy_from_slice(&(first + block as u64).to_be_bytes());
    }
    bytes
}

/// Results of reading `spans`, in their order. Fails if a span is not delivered exactly once.
fn read(device: &dyn Device, spans: &[Span]) -> Vec<Result<Vec<u8>, DeviceError>> {
    let mut results: Vec<Option<Result<Vec<u8>, DeviceError>>> = spans.iter().map(|_| None).collect();
    device.read(spans, &mut |position, result| {
        let earlier = results[position].replace(result.map(<[u8]>::to_vec));
        assert!(earlier.is_none(), "span {position} was delivered twice");
    });
    results.into_iter().map(|result| result.expect("every span is delivered")).collect()
}

fn read_all(device: &dyn Device, spans: &[Span]) -> Vec<Vec<u8>> {
    read(device, spans).into_iter().map(|result| result.expect("the read succeeds")).collect()
}

/// Written bytes are read again, by any handle.
///
/// # Panics
/// If not.
pub fn a_device_returns_the_written_bytes(volume: &dyn Volume) {
    let device = volume.device("device", true).unwrap();
    device.write(0, &blocks(0, 64, 1)).unwrap();
    device.write(9 * BLOCK_BYTES as u64, &blocks(9, 1, 2)).unwrap();
    device.sync().unwrap();
    assert_eq!(device.bytes(), 64 * BLOCK_BYTES as u64);
    let found = read_all(&*device, &[span(8, 3), span(63, 1), span(0, 64)]);
    assert_eq!(found[0], [blocks(8, 1, 1), blocks(9, 1, 2), blocks(10, 1, 1)].concat());
    assert_eq!(found[1], blocks(63, 1, 1));
    assert_eq!(found[2].len(), 64 * BLOCK_BYTES);

    let again = volume.device("device", false).unwrap();
    assert_eq!(read_all(&*again, &[span(9, 1)])[0], blocks(9, 1, 2), "another handle sees the same");
    assert!(again.write(0, &blocks(0, 1, 3)).is_err(), "a device opened read-only must refuse writes");
    assert!(matches!(volume.device("absent", false), Err(DeviceError::Missing { .. })));
}

/// Buffers need no alignment.
///
/// # Panics
/// If not.
pub fn buffers_of_any_alignment_can_be_written(volume: &dyn Volume) {
    let device = volume.device("device", true).unwrap();
    let content = blocks(0, 200, 7);
    let mut crooked = vec![0; content.len() + 1];
    crooked[1..].copy_from_slice(&content);
    device.write(0, &crooked[1..]).unwrap();
    assert_eq!(read_all(&*device, &[span(0, 200)])[0], content);
}

/// Batches of any size and order are delivered once each.
///
/// # Panics
/// If not.
pub fn a_batch_may_be_larger_than_the_queue_and_in_any_order(volume: &dyn Volume) {
    let device = volume.device("device", true).unwrap();
    device.write(0, &blocks(0, LARGE_BATCH, 3)).unwrap();
    // 7 and the size are coprime, so every block is read once, rarely after its neighbour.
    let order: Vec<u64> = (0..LARGE_BATCH as u64).map(|i| i * 7 % LARGE_BATCH as u64).collect();
    let spans: Vec<Span> = order.iter().map(|block| span(*block, 1)).collect();
    for (block, found) in order.iter().zip(read_all(&*device, &spans)) {
        assert_eq!(found, blocks(*block, 1, 3));
    }
    let far_apart: Vec<Span> = (0..LARGE_BATCH as u64 / 2).rev().map(|i| span(2 * i, 1)).collect();
    for (span, found) in far_apart.iter().zip(read_all(&*device, &far_apart)) {
        assert_eq!(found, blocks(span.offset / BLOCK_BYTES as u64, 1, 3));
    }
    let mut seen = vec![false; HUGE_BATCH];
    let huge: Vec<Span> = (0..HUGE_BATCH as u64).map(|i| span(i * 7 % LARGE_BATCH as u64, 1)).collect();
    device.read(&huge, &mut |position, result| {
        let expected = (huge[position].offset / BLOCK_BYTES as u64).to_le_bytes();
        assert_eq!(result.unwrap()[..8], expected);
        assert!(!std::mem::replace(&mut seen[position], true), "span {position} was delivered twice");
    });
    assert!(seen.iter().all(|seen| *seen), "every span is delivered");
    assert!(read_all(&*device, &[]).is_empty());
}

/// Holes and discarded blocks read as zeros.
///
/// # Panics
/// If not.
pub fn holes_and_discarded_blocks_read_as_zeros_and_nothing_else_changes(volume: &dyn Volume) {
    let device = volume.device("device", true).unwrap();
    device.write(20 * BLOCK_BYTES as u64, &blocks(20, 4, 1)).unwrap();
    assert_eq!(read_all(&*device, &[span(3, 2)])[0], vec![0; 2 * BLOCK_BYTES]);
    device.discard(span(21, 2)).unwrap();
    let found = read_all(&*device, &[span(20, 1), span(21, 2), span(23, 1)]);
    assert_eq!(found[0], blocks(20, 1, 1));
    assert_eq!(found[1], vec![0; 2 * BLOCK_BYTES]);
    assert_eq!(found[2], blocks(23, 1, 1));
    assert_eq!(device.bytes(), 24 * BLOCK_BYTES as u64, "a discard keeps the length");
}

/// A span beyond the end is an error; the others are read.
///
/// # Panics
/// If not.
pub fn reading_beyond_the_end_is_an_error_of_only_that_span(volume: &dyn Volume) {
    let device = volume.device("device", true).unwrap();
    device.write(0, &blocks(0, 10, 5)).unwrap();
    let spans = [span(9, 1), span(10, 1), span(8, 1), span(9, 2), span(500, 1), span(0, 100)];
    let results = read(&*device, &spans);
    assert_eq!(results[0].as_ref().unwrap(), &blocks(9, 1, 5));
    assert_eq!(results[2].as_ref().unwrap(), &blocks(8, 1, 5));
    for beyond in [1, 3, 4, 5] {
        match &results[beyond] {
            Err(DeviceError::Io { source, offset, .. }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::UnexpectedEof);
                assert_eq!(*offset, spans[beyond].offset);
            }
            other => panic!("{:?} gave {other:?}", spans[beyond]),
        }
    }
}

/// The callback of a read may use the device, or panic.
///
/// # Panics
/// If not.
pub fn the_callback_of_a_read_may_read_write_and_panic(volume: &dyn Volume) {
    let device = volume.device("device", true).unwrap();
    device.write(0, &blocks(0, 400, 1)).unwrap();
    let spans: Vec<Span> = (0..200).map(|i| span(2 * i, 1)).collect();
    let mut inner = 0;
    device.read(&spans, &mut |position, result| {
        result.unwrap();
        if position % 50 == 0 {
            device.write(399 * BLOCK_BYTES as u64, &blocks(399, 1, 2)).unwrap();
            assert_eq!(read_all(&*device, &[span(399, 1)])[0], blocks(399, 1, 2));
            inner += 1;
        }
    });
    assert_eq!(inner, 4);

    for _ in 0..3 {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            device.read(&spans, &mut |position, _| assert_ne!(position, 150, "on purpose"));
        }));
        assert!(panicked.is_err());
    }
    let found = read_all(&*device, &spans);
    assert!(
        found
            .iter()
            .zip(&spans)
            .all(|(found, span)| *found == blocks(span.offset / BLOCK_BYTES as u64, 1, 1))
    );
}

/// Threads may use one device.
///
/// # Panics
/// If not.
pub fn threads_read_and_write_at_the_same_time(volume: &dyn Volume) {
    const THREADS: u64 = 4;
    const BLOCKS_EACH: u64 = 300;
    let device = volume.device("device", true).unwrap();
    device.write(0, &blocks(0, (THREADS * BLOCKS_EACH) as usize, 0)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = Arc::clone(&device);
            scope.spawn(move || {
                let mine = thread * BLOCKS_EACH;
                for version in 1..6 {
                    let content = blocks(mine, BLOCKS_EACH as usize, version);
                    device.write(mine * BLOCK_BYTES as u64, &content).unwrap();
                    let spans: Vec<Span> =
                        (0..BLOCKS_EACH).map(|i| span(mine + i * 11 % BLOCKS_EACH, 1)).collect();
                    for (span, found) in spans.iter().zip(read_all(&*device, &spans)) {
                        assert_eq!(found, blocks(span.offset / BLOCK_BYTES as u64, 1, version));
                    }
                }
            });
        }
    });
}

/// Small files have names.
///
/// # Panics
/// If not.
pub fn files_are_replaced_listed_and_removed_by_name(volume: &dyn Volume) {
    let content = "a manifest".repeat(20_000);
    let mut file = volume.create("next").unwrap();
    file.write_all(content.as_bytes()).unwrap();
    file.sync().unwrap();
    drop(file);
    volume.create("MANIFEST").unwrap().write_all(b"old").unwrap();
    volume.device("device", true).unwrap();
    volume.rename("next", "MANIFEST").unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.list().unwrap(), ["MANIFEST", "device"]);
    assert_eq!(read_file(volume, "MANIFEST"), content.as_bytes());

    let mut file = volume.create("MANIFEST").unwrap();
    file.write_all(b"short").unwrap();
    file.sync().unwrap();
    drop(file);
    assert_eq!(read_file(volume, "MANIFEST"), b"short", "creating truncates");
    volume.remove("device").unwrap();
    assert_eq!(volume.list().unwrap(), ["MANIFEST"]);
    assert!(matches!(volume.remove("device"), Err(DeviceError::Missing { .. })));
    assert!(matches!(volume.rename("absent", "there"), Err(DeviceError::Missing { .. })));
    assert!(matches!(volume.open("absent"), Err(DeviceError::Missing { .. })));
}

/// A volume has one lock.
///
/// # Panics
/// If not.
pub fn a_volume_has_one_holder_at_a_time(volume: &dyn Volume) {
    let held = volume.lock().unwrap();
    match volume.lock() {
        Err(DeviceError::Locked { holder, .. }) => assert_eq!(holder, std::process::id()),
        other => panic!("a second lock gave {other:?}"),
    }
    drop(held);
    volume.lock().unwrap();
    assert!(volume.list().unwrap().is_empty(), "the lock is not part of the content");
}

fn read_file(volume: &dyn Volume, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    volume.open(name).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// Random operations give what a byte array gives.
///
/// # Panics
/// If not; the message has the seed.
pub fn a_device_agrees_with_plain_bytes(volume: &dyn Volume, seed: u64) {
    let mut rng = Rng64::new(seed);
    let device = volume.device("device", true).unwrap();
    let mut model: Vec<u8> = Vec::new();
    for step in 0..=rng.below(30) {
        apply(&*device, &mut model, &mut rng);
        assert_eq!(device.bytes(), model.len() as u64, "seed {seed}, step {step}");
    }
}

fn apply(device: &dyn Device, model: &mut Vec<u8>, rng: &mut Rng64) {
    let range =
        |first: u64, count: usize| first as usize * BLOCK_BYTES..(first as usize + count) * BLOCK_BYTES;
    let (first, count) = (rng.below(120), 1 + rng.below(23) as usize);
    match rng.below(10) {
        0..4 => {
            let content = blocks(first, count, rng.next_u64() as u8);
            device.write(first * BLOCK_BYTES as u64, &content).unwrap();
            let range = range(first, count);
            model.resize(model.len().max(range.end), 0);
            model[range].copy_from_slice(&content);
        }
        4 => {
            device.discard(span(first, count)).unwrap();
            let range = range(first, count);
            let end = range.end.min(model.len());
            model[range.start.min(end)..end].fill(0);
        }
        5 => device.sync().unwrap(),
        _ => {
            let ranges: Vec<(u64, usize)> =
                (0..=rng.below(200)).map(|_| (rng.below(120), 1 + rng.below(23) as usize)).collect();
            let spans: Vec<Span> = ranges.iter().map(|(first, count)| span(*first, *count)).collect();
            for ((first, count), found) in ranges.iter().zip(read(device, &spans)) {
                match (model.get(range(*first, *count)), found) {
                    (Some(expected), Ok(found)) => assert!(expected == found, "{first} + {count} differs"),
                    (None, Err(_)) => {}
                    (expected, found) => {
                        panic!("{first} + {count}: expected {}, found {}", expected.is_some(), found.is_ok())
                    }
                }
            }
        }
    }
}
