//! Reads cold rows from the device in batches and brings them into memory shard by shard.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rowmill_log::{Log, LogError, Reading};
use rowmill_rows::RowKey;

use super::group::Group;
use crate::error::StoreError;
use crate::memory::Claim;
use crate::shard::{Miss, Reason};
use crate::table::Key;

/// How often a row may move while it is being read before the store is reported as damaged.
const MOVES_MAX: usize = 1000;
/// Bytes of cold rows per batch of reads: enough to fill the device's queue.
const CHUNK_BYTES: usize = 1 << 20;
/// One call holds at most 1/4 of the memory for cold rows, if it can process its rows in pieces.
const PIECES: u64 = 4;
/// Rows that a call may hold even when other calls use up the memory.
const ROWS_LEAST: usize = 16;
/// The rows of one bag are needed together, so one bag may hold four times the memory of all calls.
const BAG_SHARE: u64 = 4;
/// Rows brought into a shard per acquisition of its lock.
const ADMIT_ROWS: usize = 64;

/// Rows read from the device, by index of the miss, at stable addresses.
#[derive(Debug)]
pub(crate) struct ColdRows {
    floats: Vec<f32>,
    arrived: Vec<bool>,
    width: usize,
    /// The memory claim of the buffer, if the caller has not claimed it.
    _claim: Option<Claim>,
}

impl ColdRows {
    /// The floats of a row. `None` when the row was no longer where the index pointed: look it up again.
    pub(crate) fn row(&self, number: usize) -> Option<&[f32]> {
        self.arrived[number].then(|| &self.floats[number * self.width..][..self.width])
    }
}

/// A reading of the log that begins with the first cold row of a call. Most calls find all rows in memory, and
/// the lock that a beginning takes is one for all calls.
pub(crate) struct ColdReading<'a> {
    log: &'a Log,
    begun: OnceLock<Reading<'a>>,
}

impl<'a> ColdReading<'a> {
    pub(crate) fn new(log: &'a Log) -> Self {
        Self { log, begun: OnceLock::new() }
    }

    /// A cold row. Call this before the lock is released under which the row number was found: until then, its
    /// place is not freed.
    pub(crate) fn miss(&self, key: Key, row: u32) -> Miss {
        self.begun.get_or_init(|| self.log.reading());
        Miss { key, row }
    }

    /// The reading of misses.
    pub(crate) fn begun(&self) -> &Reading<'a> {
        self.begun.get().expect("every miss begins the reading")
    }
}

impl Group {
    /// Rows per batch of reads into memory that the caller has claimed.
    pub(crate) fn read_chunk(&self) -> usize {
        (CHUNK_BYTES / self.core.layout.stride).max(ROWS_LEAST)
    }

    /// Rows per batch of reads, as far as the memory for cold rows allows.
    pub(crate) fn cold_chunk(&self) -> usize {
        self.cold_piece().min(self.read_chunk())
    }

    /// Cold rows that a call may hold at once, if it processes its rows in pieces.
    pub(crate) fn cold_piece(&self) -> usize {
        let cold = &self.core.budget.cold;
        let left = cold.limit().saturating_sub(cold.used());
        (left.min(cold.limit() / PIECES) as usize / self.core.layout.stride).max(ROWS_LEAST)
    }

    /// Claim memory for `rows` cold rows, or nothing.
    pub(crate) fn try_claim_cold(&self, rows: usize) -> Option<Claim> {
        let bytes = (rows * self.core.layout.stride) as u64;
        self.making_room(|budget| budget.cold.try_claim(bytes))
    }

    /// Claim memory for cold rows that a call needs to proceed, even beyond the limit.
    fn claim_cold(&self, rows: usize) -> Claim {
        let bytes = (rows * self.core.layout.stride) as u64;
        self.making_room(|budget| budget.cold.claim(bytes, bytes))
    }

    /// Claim memory for the cold rows of a piece of a call. A piece of several bags has at most
    /// [`Group::cold_piece`] rows. A piece of one bag has all its rows, since they are pooled together.
    ///
    /// # Errors
    /// [`StoreError::MemoryTooSmall`] for a bag with more rows than any call may hold.
    pub(crate) fn claim_piece(&self, rows: usize) -> Result<Claim, StoreError> {
        let bytes = (rows * self.core.layout.stride) as u64;
        let (memory, limit) = (self.core.budget.memory(), self.core.budget.cold.limit() * BAG_SHARE);
        if rows <= ROWS_LEAST || bytes <= limit {
            return Ok(self.claim_cold(rows));
        }
        Err(StoreError::MemoryTooSmall {
            option: "memory",
            given: memory,
            needed: bytes.saturating_mul(memory / limit),
            what: format!("a bag with {rows} rows that are not in memory ({bytes} bytes of buffers)"),
        })
    }

    /// Read cold rows for a call. The time counts as waiting for the device.
    ///
    /// # Errors
    /// The error of the first failed read.
    pub(crate) fn read_cold(&self, reading: &Reading<'_>, misses: &[Miss]) -> Result<ColdRows, StoreError> {
        self.timed(misses, || self.read_ahead(reading, misses))
    }

    /// As [`Group::read_cold`], into memory that the caller has claimed.
    pub(crate) fn read_claimed(
        &self,
        reading: &Reading<'_>,
        misses: &[Miss],
    ) -> Result<ColdRows, StoreError> {
        self.timed(misses, || self.read_rows(reading, misses))
    }

    fn timed<T>(&self, misses: &[Miss], read: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = read();
        self.counters.cold_reads.fetch_add(misses.len() as u64, Relaxed);
        self.counters.cold_wait_ns.fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
        result
    }

    /// As [`Group::read_cold`], for a background thread: no call waits for it.
    pub(crate) fn read_ahead(&self, reading: &Reading<'_>, misses: &[Miss]) -> Result<ColdRows, StoreError> {
        let claim = self.claim_cold(misses.len());
        self.read_rows(reading, misses).map(|cold| ColdRows { _claim: Some(claim), ..cold })
    }

    fn read_rows(&self, reading: &Reading<'_>, misses: &[Miss]) -> Result<ColdRows, StoreError> {
        let wanted: Vec<(u32, RowKey)> = {
            let tables = self.tables.read();
            let key = |key: Key| RowKey { category: tables[key.table as usize].category, id: key.id };
            misses.iter().map(|miss| (miss.row, key(miss.key))).collect()
        };
        let width = self.core.layout.stride / 4;
        let mut cold = ColdRows {
            floats: vec![0.0; misses.len() * width],
            arrived: vec![false; misses.len()],
            width,
            _claim: None,
        };
        let mut failure = None;
        reading.read(&wanted, &mut |number, result| match result {
            Ok(bytes) => {
                copy_row(bytes, &mut cold.floats[number * width..][..width]);
                cold.arrived[number] = true;
            }
            Err(LogError::Moved { .. }) => {}
            Err(error) => {
                failure.get_or_insert(error);
            }
        });
        failure.map_or(Ok(cold), |error| Err(error.into()))
    }

    /// Report damage when a row has moved too often: the log then does not hold it at all.
    pub(crate) fn check_rounds(&self, rounds: usize, miss: Miss) -> Result<(), StoreError> {
        if rounds < MOVES_MAX {
            return Ok(());
        }
        let key = self.key(miss.key.table, miss.key.id);
        let what = format!("the index locates {key} at row {} of the log, which holds no such row", miss.row);
        Err(StoreError::Corrupt { what })
    }

    /// Bring rows that were read into memory, unless they have moved since. Returns how many. Announced rows
    /// are admitted only up to their part of the memory.
    ///
    /// # Errors
    /// When another row cannot be written to the log to make room.
    pub(crate) fn admit_cold(
        &self,
        misses: &[Miss],
        cold: &ColdRows,
        reason: Reason,
    ) -> Result<usize, StoreError> {
        let mut admitted = 0;
        let mut number = 0;
        for misses in misses.chunk_by(|one, next| one.key.shard == next.key.shard) {
            for misses in misses.chunks(ADMIT_ROWS) {
                let mut state = self.shards[misses[0].key.shard as usize].state.write();
                for Miss { key, .. } in misses {
                    state.index(key.table).prefetch(key.id, key.hash);
                }
                for (miss, row) in misses.iter().zip((number..).map(|number| cold.row(number))) {
                    let Some(row) = row else { continue };
                    if let Reason::Wanted(step) = reason
                        && (state.due.is_past(step) || !state.may_admit_ahead(1))
                    {
                        break;
                    }
                    let slot = state.admit(&self.core, miss, as_bytes(row), reason)?;
                    admitted += usize::from(slot.is_some());
                }
                number += misses.len();
            }
        }
        Ok(admitted)
    }
}

/// Copy the unaligned bytes of a row into floats.
fn copy_row(bytes: &[u8], row: &mut [f32]) {
    assert_eq!(bytes.len(), row.len() * 4, "the bytes of a row have another stride");
    // SAFETY: equal lengths (asserted), no overlap (`row` is exclusively borrowed), any bits are an f32.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), row.as_mut_ptr().cast::<u8>(), bytes.len()) };
}

/// The bytes of a row.
pub(crate) fn as_bytes(row: &[f32]) -> &[u8] {
    // SAFETY: floats are plain bytes without padding; the length covers exactly the slice.
    unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), size_of_val(row)) }
}
