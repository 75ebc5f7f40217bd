//! Tests of the whole log: against a model with crashes, with damage of every kind, and with threads.
//!
//! Devices are in memory; [`Faulty`] injects the faults of real devices. No test sleeps or measures time.

mod damage;
mod model;
mod reuse;
mod threads;

use std::sync::Arc;

use rowmill_io::{BLOCK_BYTES, Device, DeviceError, MemoryVolume, ReadResult, Span, Volume};
use rowmill_rows::{Category, RowKey};
use rowmill_sync::unranked::{Condvar, Mutex};

use super::{Geometry, Log, LogConfig, LogError, LogState, ROW_NUMBERS};

const SEGMENT: usize = 16 << 10;

fn config(stride: usize) -> LogConfig {
    LogConfig {
        group: 7,
        geometry: Geometry::new(stride, SEGMENT),
        tail_buffers: 3,
        writer_thread: true,
        checksum_bytes_max: 1 << 20,
        incarnation: 1,
        row_numbers: ROW_NUMBERS,
        poison: Arc::default(),
    }
}

fn memory_device() -> Arc<dyn Device> {
    MemoryVolume::new().device("group-7.log", true).unwrap()
}

fn key(id: u64) -> RowKey {
    RowKey { category: Category(3), id }
}

/// The bytes of version `version` of row `id`.
fn row(stride: usize, id: u64, version: u64) -> Vec<u8> {
    let seed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version.wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    (0..stride).map(|at| (seed.rotate_left(at as u32 % 61) as usize + at) as u8).collect()
}

/// Read rows by number. Returns the results by position.
fn read(log: &Log, wanted: &[(u32, RowKey)]) -> Vec<Result<Vec<u8>, LogError>> {
    let mut results: Vec<Option<Result<Vec<u8>, LogError>>> = vec![None; wanted.len()];
    log.reading().read(wanted, &mut |position, result| {
        let before = results[position].replace(result.map(<[u8]>::to_vec));
        assert!(before.is_none(), "position {position} was delivered twice");
    });
    results.into_iter().map(|result| result.expect("every position is delivered")).collect()
}

fn read_one(log: &Log, number: u32, id: u64) -> Result<Vec<u8>, LogError> {
    read(log, &[(number, key(id))]).remove(0)
}

/// Append rows `ids` in their first version. Returns their row numbers.
fn append(log: &Log, ids: std::ops::Range<u64>) -> Vec<u32> {
    let stride = log.geometry().stride();
    ids.map(|id| log.append(key(id), &row(stride, id, 0)).unwrap()).collect()
}

/// Make a checkpoint that contains only the log.
fn checkpoint(log: &Log) -> LogState {
    let cut = log.cut();
    log.flush().unwrap();
    log.sync().unwrap();
    let state = log.state(cut);
    log.checkpoint_durable(cut);
    state
}

/// A device that fails on demand.
#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Device>,
    faults: Mutex<Faults>,
    changed: Condvar,
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent faults that can be combined")]
struct Faults {
    /// Writes wait while this is set.
    hold_writes: bool,
    /// Number of writes that do not wait.
    writes_let_through: usize,
    writes_waiting: usize,
    /// Number of writes that still succeed.
    writes_left: Option<usize>,
    full: bool,
    fail_sync: bool,
    fail_discard: bool,
    /// Reads of the first block return the second one.
    misdirect: Option<(u64, u64)>,
    /// Reads of this block fail.
    unreadable: Option<u64>,
    spans_read: Vec<Span>,
}

impl Faulty {
    fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, faults: Mutex::default(), changed: Condvar::new() })
    }

    fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock());
        self.changed.notify_all();
    }

    /// Wait until a write is held back.
    fn await_held_write(&self) {
        let mut faults = self.faults.lock();
        while faults.writes_waiting == 0 {
            faults = self.changed.wait(faults);
        }
    }

    fn broken(operation: &'static str, offset: u64) -> DeviceError {
        DeviceError::Io {
            operation,
            name: "faulty".into(),
            offset,
            source: std::io::Error::from_raw_os_error(5),
        }
    }

    /// Change the blocks on the device without using the log.
    fn edit(&self, offset: u64, change: impl FnOnce(&mut [u8])) {
        let mut block = block_at(&self.inner, offset);
        change(&mut block);
        self.inner.write(offset, &block).unwrap();
    }
}

fn block_at(device: &Arc<dyn Device>, offset: u64) -> Vec<u8> {
    let mut copy = Vec::new();
    device.read(&[Span { offset, bytes: BLOCK_BYTES }], &mut |_, block| copy = block.unwrap().to_vec());
    copy
}

impl Device for Faulty {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
        let (misdirect, unreadable) = {
            let mut faults = self.faults.lock();
            faults.spans_read.extend_from_slice(spans);
            (faults.misdirect, faults.unreadable)
        };
        let redirected: Vec<Span> = spans
            .iter()
            .map(|span| match misdirect {
                Some((from, to)) if span.offset == from => Span { offset: to, ..*span },
                _ => *span,
            })
            .collect();
        self.inner.read(&redirected, &mut |position, result| {
            let offset = spans[position].offset;
            let failed = unreadable == Some(offset);
            deliver(position, if failed { Err(Self::broken("read", offset)) } else { result });
        });
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        let mut faults = self.faults.lock();
        faults.writes_waiting += 1;
        self.changed.notify_all();
        while faults.hold_writes && faults.writes_let_through == 0 {
            faults = self.changed.wait(faults);
        }
        faults.writes_let_through = faults.writes_let_through.saturating_sub(1);
        faults.writes_waiting -= 1;
        match faults.writes_left {
            Some(0) if faults.full => {
                Err(DeviceError::Full { name: "faulty".into(), offset, bytes: blocks.len() })
            }
            Some(0) => Err(Self::broken("write", offset)),
            left => {
                faults.writes_left = left.map(|left| left - 1);
                self.inner.write(offset, blocks)
            }
        }
    }

    fn sync(&self) -> Result<(), DeviceError> {
        if self.faults.lock().fail_sync { Err(Self::broken("sync", 0)) } else { self.inner.sync() }
    }

    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        if self.faults.lock().fail_discard {
            return Err(Self::broken("discard", span.offset));
        }
        self.inner.discard(span)
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}
