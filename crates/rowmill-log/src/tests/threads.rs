//! Threads that append, overwrite, read and checkpoint concurrently.
//!
//! Every row carries its id and version, so that a reader can distinguish a wrong row from an old one. The
//! index is a map behind a lock, like the indexes of shards. Readers look rows up under the lock and read
//! them after releasing it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rowmill_sync::unranked::RwLock;

use super::*;

const STRIDE: usize = 128;
const IDS: u64 = 400;
const ROUNDS_MAX: u64 = 2000;

fn version_of(bytes: &[u8], id: u64, newest: u64) -> Option<u64> {
    (0..=newest).rev().find(|version| bytes == row(STRIDE, id, *version))
}

/// Whether more segments were written than there are places.
fn is_recycled(log: &Log) -> bool {
    let space = log.space();
    let places = (space.used + space.pinned + space.free) / log.geometry().place_bytes() as u64;
    places < log.counts().segments_written
}

#[test]
fn readers_never_see_another_row_while_segments_are_reused() {
    let log = Log::open(memory_device(), config(STRIDE), &LogState::default()).unwrap();
    let index: RwLock<HashMap<u64, (u32, u64)>> = RwLock::default();
    for id in 0..IDS {
        index.write().insert(id, (log.append(key(id), &row(STRIDE, id, 0)).unwrap(), 0));
    }
    let done = AtomicBool::new(false);
    let cuts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..2u64 {
            let (log, index, done) = (&log, &index, &done);
            scope.spawn(move || {
                let mut at = seed;
                let mut reads = 0u64;
                while !done.load(Ordering::Relaxed) || reads == 0 {
                    let reading = log.reading();
                    let wanted: Vec<_> = {
                        let index = index.read();
                        (0..32)
                            .map(|step| (at + step * 7) % IDS)
                            .map(|id| (index[&id].0, key(id), index[&id].1))
                            .collect()
                    };
                    let numbers: Vec<_> = wanted.iter().map(|(number, key, _)| (*number, *key)).collect();
                    reading.read(&numbers, &mut |position, result| {
                        let (_, key, version) = wanted[position];
                        match result {
                            Ok(bytes) => assert_eq!(version_of(bytes, key.id, version), Some(version)),
                            // Released after it was looked up.
                            Err(LogError::Moved { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    });
                    at += 13;
                    reads += 1;
                }
            });
        }
        let checkpointer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = checkpoint(&log);
                cuts.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in 1..ROUNDS_MAX {
            // Places become free only with a checkpoint and after their readers end. On a busy machine
            // neither may have happened yet.
            if round > 60 && is_recycled(&log) {
                break;
            }
            while cuts.load(Ordering::Relaxed) < round / 4 {
                std::thread::yield_now();
            }
            for id in 0..IDS {
                if (id * 31 + round) % 3 == 0 {
                    continue;
                }
                let number = log.append(key(id), &row(STRIDE, id, round)).unwrap();
                let mut index = index.write();
                let (old, _) = index.insert(id, (number, round)).unwrap();
                log.release(old);
            }
        }
        done.store(true, Ordering::Relaxed);
        checkpointer.join().unwrap();
    });
    let _ = (checkpoint(&log), checkpoint(&log));
    let space = log.space();
    assert_eq!((space.live, space.pinned), (IDS * STRIDE as u64, 0));
    let counts = log.counts();
    assert!(counts.rows_read > 0 && counts.tail_hits > 0 && counts.corrupt == 0, "{counts:?}");
    assert!(is_recycled(&log), "no place was written twice: {space:?} for {counts:?}");
    let index = index.into_inner();
    for (id, (number, version)) in index {
        assert_eq!(read_one(&log, number, id).unwrap(), row(STRIDE, id, version));
    }
}

#[test]
fn appending_from_several_threads_keeps_every_row() {
    let log = Log::open(memory_device(), config(STRIDE), &LogState::default()).unwrap();
    let numbers: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let log = &log;
                scope.spawn(move || {
                    let numbers = append(log, thread * 1000..thread * 1000 + 700);
                    log.flush().unwrap();
                    numbers
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (thread, numbers) in (0..).zip(&numbers) {
        for (at, number) in (0..).zip(numbers) {
            let id = thread * 1000 + at;
            assert_eq!(read_one(&log, *number, id).unwrap(), row(STRIDE, id, 0));
        }
    }
    assert_eq!(log.counts().rows_appended, 2800);
}

#[test]
fn the_callback_of_a_read_may_append() {
    let log = Log::open(memory_device(), config(STRIDE), &LogState::default()).unwrap();
    let numbers = append(&log, 0..500);
    let wanted: Vec<_> = (0..).zip(&numbers).map(|(id, number)| (*number, key(id))).collect();
    let mut copies = Vec::new();
    log.reading().read(&wanted, &mut |position, result| {
        copies.push((log.append(wanted[position].1, result.unwrap()).unwrap(), wanted[position].1));
    });
    for ((_, wanted), result) in copies.iter().zip(read(&log, &copies)) {
        assert_eq!(result.unwrap(), row(STRIDE, wanted.id, 0));
    }
}

#[test]
fn waiting_for_writes_leaves_the_buffers_empty() {
    let log =
        Log::open(memory_device(), LogConfig { writer_thread: false, ..config(512) }, &LogState::default())
            .unwrap();
    let per_segment = u64::from(log.geometry().rows_per_segment());
    append(&log, 0..2 * per_segment + 1);
    assert_eq!(log.counts().segments_written, 0);
    log.await_written();
    assert_eq!(log.counts().segments_written, 2, "the segments that are full, and not the open one");
}

#[test]
fn waits_on_a_poisoned_log_end() {
    let device = Faulty::new(memory_device());
    let log = Log::open(device.clone(), config(512), &LogState::default()).unwrap();
    device.set(|faults| faults.writes_left = Some(0));
    append(&log, 0..u64::from(log.geometry().rows_per_segment()));
    log.await_written();
    assert!(matches!(log.flush(), Err(LogError::Poisoned { .. })));
}

#[test]
fn waiting_for_writes_does_not_wait_for_later_segments() {
    let ends_with_the_first_write = || {
        let device = Faulty::new(memory_device());
        let log = Log::open(device.clone(), config(512), &LogState::default()).unwrap();
        let per_segment = u64::from(log.geometry().rows_per_segment());
        device.set(|faults| faults.hold_writes = true);
        append(&log, 0..per_segment);
        device.await_held_write();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| log.await_written());
            std::thread::sleep(Duration::from_millis(50));
            append(&log, per_segment..2 * per_segment);
            device.set(|faults| faults.writes_let_through = 1);
            let last = Instant::now() + Duration::from_secs(2);
            while !waiting.is_finished() && Instant::now() < last {
                std::thread::yield_now();
            }
            let has_ended = waiting.is_finished();
            device.set(|faults| faults.hold_writes = false);
            has_ended
        })
    };
    // On a busy machine the thread may begin to wait after the second segment is sealed.
    assert!((0..5).any(|_| ends_with_the_first_write()));
}
