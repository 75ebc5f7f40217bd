//! Plain reads, which change nothing but the cache: evaluation, serving, scans.

use std::convert::Infallible;

use rowmill_rows::Dtype;

use crate::error::StoreError;
use crate::group::{Absent, AllShards, ColdReading, Group, Locked, Residents, ShardCell, walk};
use crate::shard::{Miss, Reason};
use crate::table::{Key, Keys, TableIds, TableState, copy_floats, join_weights};
use crate::threads::Scatter;

/// Rows read per acquisition of the locks: about 100 us of work.
pub(crate) const PIECE_ROWS: usize = 2048;

/// Rows found and then copied together: their addresses take 4 KiB.
const FOUND_ROWS: usize = 512;

/// How often locks of all shards are tried.
const ATTEMPTS: usize = 64;

/// Which floats of a row are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowPart {
    /// The weights.
    Weights,
    /// The optimizer state.
    State,
}

/// Where the part lies in a row.
#[derive(Clone, Copy, Debug)]
enum Stored {
    /// As floats, from this byte on.
    Floats(usize),
    /// As weights stored in 16-bit halves, at the beginning of the row.
    Halves,
}

/// One read of many rows.
struct Read<'a> {
    table: &'a TableState,
    part: RowPart,
    stored: Stored,
    /// Number of floats of the part.
    width: usize,
    /// Number of the step that reads, if any.
    step: Option<u64>,
    /// `width` floats per position.
    out: Scatter<'a, f32>,
    reading: ColdReading<'a>,
}

impl Group {
    /// Copy the weights (or state) of `ids` to `out`. An id without a row yields its initial values, and no
    /// row is created. Duplicates are allowed. Takes no clocks. Announcements for steps before `step` end.
    pub(crate) fn read(
        &self,
        table: &TableState,
        ids: &[u64],
        part: RowPart,
        out: &mut [f32],
        step: Option<u64>,
    ) -> Result<(), StoreError> {
        let layout = self.core.layout;
        let (stored, width) = match (part, layout.dtype) {
            (RowPart::Weights, Dtype::F32) => (Stored::Floats(0), layout.dim),
            (RowPart::Weights, Dtype::Bf16 | Dtype::SplitBf16) => (Stored::Halves, layout.dim),
            (RowPart::State, _) => (Stored::Floats(layout.state_offset()), layout.state_floats),
        };
        table.count_accesses(ids);
        self.counters.count_call(ids.len(), ids.len());
        let reading = ColdReading::new(&self.core.log);
        let read = Read { table, part, stored, width, step, out: Scatter::new(out), reading };
        self.advance(step);
        let pieces = self.workers.map(ids.len(), ids.len().div_ceil(PIECE_ROWS), |number| {
            let first = number * PIECE_ROWS;
            self.read_piece(&read, first, &ids[first..ids.len().min(first + PIECE_ROWS)])
        });
        let mut misses: Vec<Miss> = pieces.into_iter().flatten().collect();
        let _lists = (!misses.is_empty()).then(|| self.claim_lists(size_of_val(&misses[..])));
        let mut rounds = 0;
        while !misses.is_empty() {
            rounds += 1;
            self.check_rounds(rounds, misses[0])?;
            misses = self.read_missing(&read, &misses)?;
        }
        Ok(())
    }

    /// Step number `step` reads: announcements for earlier steps end.
    pub(crate) fn advance(&self, step: Option<u64>) {
        let Some(step) = step else { return };
        for cell in &self.shards {
            // Most reads of a step are not its first, and then a shared lock suffices.
            if !cell.state.read().due.is_past(step) {
                cell.state.write().advance(step);
            }
        }
    }

    /// Copy the rows of `ids` that are in memory; the first id is at position `first`. Returns the others as
    /// misses.
    ///
    /// Rows are visited in the order of the ids, so that the output is written in order. If shards are changed all the time,
    /// rows are visited shard by shard.
    fn read_piece(&self, read: &Read<'_>, first: usize, ids: &[u64]) -> Vec<Miss> {
        let mut misses = Vec::new();
        let &TableState { local, ref spec, .. } = read.table;
        let Some(all) = self.read_all() else {
            let ids = TableIds { table: local, range: spec.ids, ids };
            let keys = Keys::new(&[ids], first, self.shards.len(), None);
            for (shard, cell) in self.shards.iter().enumerate() {
                self.read_resident(read, &mut cell.state.read(), keys.of_shard(shard), &mut misses);
            }
            return misses;
        };
        if self.read_all_resident(read, &all, first, ids).is_ok() {
            return misses;
        }
        let shards = self.shards.len();
        let key = |(position, &id)| Key::new(local, spec.ids, id, position as u32, shards);
        let keys: Vec<Key> = (first..).zip(ids).map(key).collect();
        self.read_resident(read, &mut &all, &keys, &mut misses);
        drop(all);
        // Sorted by shard, so that rows of a shard are brought into memory together.
        misses.sort_by_key(|miss| miss.key.shard);
        misses
    }

    /// Copy the rows of `ids`, if all exist and are in memory, and no shard counts uses.
    fn read_all_resident(
        &self,
        read: &Read<'_>,
        all: &AllShards<'_>,
        first: usize,
        ids: &[u64],
    ) -> Result<(), Absent> {
        let residents = Residents::new(&self.core, all, read.table).ok_or(Absent)?;
        let mut rows = [std::ptr::null(); FOUND_ROWS];
        let (start, dtype) = match read.stored {
            Stored::Floats(start) => (start, Dtype::F32),
            Stored::Halves => (0, self.core.layout.dtype),
        };
        for (number, ids) in ids.chunks(FOUND_ROWS).enumerate() {
            let rows = &mut rows[..ids.len()];
            if residents.find(ids, rows)? > 0 {
                return Err(Absent);
            }
            for row in &mut *rows {
                *row = row.wrapping_byte_add(start);
            }
            let position = first + number * FOUND_ROWS;
            // SAFETY: every position is visited by one thread.
            let out = unsafe { read.out.slice(position * read.width, rows.len() * read.width) };
            // SAFETY: the requested parts of resident rows, which the shards' read locks keep in place and unwritten.
            unsafe { rowmill_kernels::gather(rows, dtype, read.width, out, read.width) };
        }
        Ok(())
    }

    /// Lock all shards for reading. `None` if shards are changed all the time.
    ///
    /// Where a shard is being changed, this waits until that change is over, without any lock, and tries again: a change is short,
    /// and the caller's other path takes several times as long.
    pub(crate) fn read_all(&self) -> Option<AllShards<'_>> {
        for _ in 0..ATTEMPTS {
            let all: Result<AllShards<'_>, &ShardCell> =
                self.shards.iter().map(|cell| cell.state.try_read().ok_or(cell)).collect();
            match all {
                Ok(all) => return Some(all),
                Err(changing) => drop(changing.state.read()),
            }
        }
        None
    }

    /// Copy the rows of `keys` that are in memory. The others are added to the misses.
    fn read_resident<L: Locked>(
        &self,
        read: &Read<'_>,
        locked: &mut L,
        keys: &[Key],
        misses: &mut Vec<Miss>,
    ) {
        let width = read.width;
        let Ok(()) = walk(&self.core, locked, keys, |locked, key, found| {
            // SAFETY: every position is visited by one thread.
            let out = unsafe { read.out.slice(key.position as usize * width, width) };
            let Some(found) = found else {
                self.initial(read, key.id, out);
                return Ok::<(), Infallible>(());
            };
            if let Some(slot) = found.location.slot() {
                let shard = locked.shard(key);
                shard.touch(key.table, found.entry, slot, read.step.is_some());
                // SAFETY: a resident row, which the shard's read lock keeps in place and unwritten.
                unsafe { self.copy_out(read, shard.row(&self.core, slot), out) };
            } else if let Some(row) = found.location.row() {
                misses.push(read.reading.miss(*key, row));
            }
            Ok(())
        });
    }

    /// Read cold rows, copy them to the output and load them into memory. Rows that have moved are copied if
    /// they are now in memory, else returned with their new row number.
    fn read_missing(&self, read: &Read<'_>, misses: &[Miss]) -> Result<Vec<Miss>, StoreError> {
        let mut again = Vec::new();
        for chunk in misses.chunks(self.cold_chunk()) {
            let cold = self.read_cold(read.reading.begun(), chunk)?;
            for (number, miss) in chunk.iter().enumerate() {
                let Some(row) = cold.row(number) else {
                    let shard = &self.shards[miss.key.shard as usize];
                    self.read_resident(read, &mut shard.state.read(), &[miss.key], &mut again);
                    continue;
                };
                // SAFETY: only this thread works on the misses of this call.
                let out = unsafe { read.out.slice(miss.key.position as usize * read.width, read.width) };
                // SAFETY: a whole row, in a buffer of this call.
                unsafe { self.copy_out(read, row.as_ptr(), out) };
            }
            // The caller has its rows. If no room can be made for them in memory, the next change of a row
            // reports the error.
            let _ = self.admit_cold(chunk, &cold, Reason::Use);
        }
        Ok(again)
    }

    /// Copy the requested part of a row.
    ///
    /// # Safety
    /// `row` is a row of this group, and no thread writes it meanwhile.
    #[inline(always)]
    unsafe fn copy_out(&self, read: &Read<'_>, row: *const f32, out: &mut [f32]) {
        match read.stored {
            // SAFETY: by the contract of this function; the part has as many floats as `out`.
            Stored::Floats(start) => unsafe {
                copy_floats(row.byte_add(start), out.as_mut_ptr(), read.width);
            },
            // SAFETY: by the contract of this function.
            Stored::Halves => unsafe { join_weights(&self.core.layout, row, out) },
        }
    }

    /// The initial values of a missing row.
    fn initial(&self, read: &Read<'_>, id: u64, out: &mut [f32]) {
        match read.part {
            RowPart::Weights => read.table.initializer.fill(id, out),
            RowPart::State => self.core.spec.optimizer.initialize_state(out),
        }
    }
}
