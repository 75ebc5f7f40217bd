//! Reading rows without changing anything but the cache: evaluation, serving, scans.

use std::convert::Infallible;

use crate::StoreError;
use crate::group::Group;
use crate::keys::Key;
use crate::log::Reading;
use crate::scatter::Scatter;
use crate::shard::{Miss, Reason};
use crate::table_state::TableState;
use crate::walk::walk;

/// Times a row may move while it is being read before the store is judged inconsistent.
pub(crate) const MOVES_MAX: usize = 1000;

/// Which floats of a row are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// The weights.
    Weights,
    /// The optimizer state.
    State,
}

/// One read of many rows.
struct Read<'a> {
    part: Part,
    /// First float of the part within a row, and its length.
    start: usize,
    width: usize,
    /// `width` floats per position.
    out: Scatter<'a, f32>,
}

impl Group {
    /// Copy the weights (or state) of `ids` to `out`. An id without a row yields its initial value and
    /// stays without one; duplicates are fine. Takes no clocks.
    pub(crate) fn read(
        &self,
        table: &TableState,
        ids: &[u64],
        part: Part,
        out: &mut [f32],
    ) -> Result<(), StoreError> {
        let layout = self.core.layout;
        let (start, width) = match part {
            Part::Weights => (0, layout.dim),
            Part::State => (layout.state_offset() / 4, layout.state_floats),
        };
        let keys = self.keys(table, ids);
        table.count_accesses(ids);
        self.counters.count_call(ids.len(), ids.len());
        let read = Read { part, start, width, out: Scatter::new(out) };
        let reading = self.core.log.reading();
        let misses =
            self.for_each_shard(&keys, |shard| self.read_resident(&read, shard, keys.of_shard(shard)));
        let mut misses: Vec<Miss> = misses.into_iter().flat_map(|(_, misses)| misses).collect();
        let mut rounds = 0;
        while !misses.is_empty() {
            rounds += 1;
            self.check_rounds(rounds, misses[0])?;
            misses = self.read_missing(&read, &reading, &misses)?;
        }
        Ok(())
    }

    /// A row that keeps moving is not in the log at all.
    pub(crate) fn check_rounds(&self, rounds: usize, miss: Miss) -> Result<(), StoreError> {
        if rounds < MOVES_MAX {
            return Ok(());
        }
        let key = self.key(miss.key.table, miss.key.id);
        let what = format!("{key} is indexed at row {} of the log, which holds no such row", miss.row);
        Err(StoreError::Corrupt { what })
    }

    /// Copy what is in memory; the rest is returned as misses.
    fn read_resident(&self, read: &Read<'_>, shard: usize, keys: &[Key]) -> Vec<Miss> {
        let mut state = self.shards[shard].state.read();
        let width = read.width;
        let mut misses = Vec::new();
        let Ok(()) = walk::<false, _, _>(&self.core, &mut state, keys, |state, key, found| {
            // SAFETY: positions of one shard are visited by one thread, and shards do not share positions.
            let out = unsafe { read.out.slice(key.position as usize * width, width) };
            let Some(found) = found else {
                self.initial(key, read.part, out);
                return Ok::<(), Infallible>(());
            };
            if let Some(slot) = found.location.slot() {
                state.touch(key.table, found.place, slot, false);
                let row = state.row(&self.core, slot).wrapping_add(read.start);
                // SAFETY: `row` points at `width` floats of a resident row, which the shard's read lock keeps
                // in place and unwritten; `out` has as many.
                unsafe { copy_floats(row, out.as_mut_ptr(), width) };
            } else if let Some(row) = found.location.row() {
                misses.push(Miss { key: *key, row, shard: shard as u32 });
            }
            Ok(())
        });
        misses
    }

    /// Read cold rows, copy them out and admit them to the cache. Rows that moved are returned with
    /// their new place (or were copied from memory).
    fn read_missing(
        &self,
        read: &Read<'_>,
        reading: &Reading<'_>,
        misses: &[Miss],
    ) -> Result<Vec<Miss>, StoreError> {
        let mut again = Vec::new();
        for chunk in misses.chunks(self.cold_chunk()) {
            let cold = self.read_cold(reading, chunk)?;
            for (number, miss) in chunk.iter().enumerate() {
                let Some(row) = cold.row(number) else {
                    again.extend(self.read_resident(read, miss.shard as usize, &[miss.key]));
                    continue;
                };
                // SAFETY: this thread alone works on the misses of this call.
                let out = unsafe { read.out.slice(miss.key.position as usize * read.width, read.width) };
                out.copy_from_slice(&row[read.start..read.start + read.width]);
            }
            // The caller has its rows: when another one cannot be written out to make room, the next
            // change reports it.
            let _ = self.admit_cold(chunk, &cold, Reason::Use);
        }
        Ok(again)
    }

    /// The value a row would be born with.
    fn initial(&self, key: &Key, part: Part, out: &mut [f32]) {
        match part {
            Part::Weights => self.tables.read()[key.table as usize].initializer.fill(key.id, out),
            Part::State => self.core.spec.optimizer.initialize_state(out),
        }
    }
}

/// Copy `width` floats. Rows are short: a call of the C library's copy would cost more than the copy.
///
/// # Safety
/// Both sides have `width` floats, and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_floats(row: *const f32, out: *mut f32, width: usize) {
    const LINE_FLOATS: usize = 16;
    let lines = width / LINE_FLOATS;
    // SAFETY: the caller's: `width` floats on both sides, which do not overlap.
    unsafe {
        for line in 0..lines {
            let column = line * LINE_FLOATS;
            let line: [f32; LINE_FLOATS] = row.add(column).cast::<[f32; LINE_FLOATS]>().read_unaligned();
            out.add(column).cast::<[f32; LINE_FLOATS]>().write_unaligned(line);
        }
        for rest in lines * LINE_FLOATS..width {
            *out.add(rest) = *row.add(rest);
        }
    }
}
