//! Reading rows without changing anything but the cache: evaluation, serving, scans.

use crate::StoreError;
use crate::group::Group;
use crate::keys::Keys;
use crate::log::Reading;
use crate::scatter::Scatter;
use crate::shard::{Miss, Reason};
use crate::table_state::TableState;

/// Keys whose index bucket, and then row, is fetched ahead; further gains nothing (measured 16-48).
pub(crate) const AHEAD: usize = 16;
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
    keys: &'a Keys,
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
        let read = Read { keys: &keys, part, start, width, out: Scatter::new(out) };
        let reading = self.core.log.reading();
        let misses =
            self.for_each_shard(&keys, |shard| self.read_resident(&read, shard, keys.of_shard(shard)));
        let mut misses: Vec<Miss> = misses.into_iter().flat_map(|(_, misses)| misses).collect();
        let mut rounds = 0;
        while !misses.is_empty() {
            rounds += 1;
            self.check_rounds(rounds, &keys, misses[0])?;
            misses = self.read_missing(&read, &reading, &misses)?;
        }
        Ok(())
    }

    /// A row that keeps moving is not in the log at all.
    pub(crate) fn check_rounds(&self, rounds: usize, keys: &Keys, miss: Miss) -> Result<(), StoreError> {
        if rounds < MOVES_MAX {
            return Ok(());
        }
        let (table, id) = keys.at(miss.position);
        let key = self.key(table, id);
        let what = format!("{key} is indexed at row {} of the log, which holds no such row", miss.row);
        Err(StoreError::Corrupt { what })
    }

    /// Copy what is in memory; the rest is returned as misses.
    fn read_resident(&self, read: &Read<'_>, shard: usize, positions: &[u32]) -> Vec<Miss> {
        let state = self.shards[shard].state.read();
        let width = read.width;
        let mut misses = Vec::new();
        let mut block: [(u32, *const f32); AHEAD] = [(0, std::ptr::null()); AHEAD];
        for positions in positions.chunks(AHEAD) {
            for &position in positions {
                let (table, id) = read.keys.at(position);
                state.index(table).prefetch(id);
            }
            let mut found = 0;
            for &position in positions {
                let (table, id) = read.keys.at(position);
                let Some(place) = state.index(table).find(id) else {
                    // SAFETY: positions of one shard are visited by one thread, and shards do not share
                    // positions.
                    let out = unsafe { read.out.slice(position as usize * width, width) };
                    self.initial(table, id, read.part, out);
                    continue;
                };
                let location = state.index(table).location(place);
                if let Some(slot) = location.slot() {
                    state.touch(table, place, slot, false);
                    let row = state.row(&self.core, slot).wrapping_add(read.start);
                    prefetch(row);
                    block[found] = (position, row);
                    found += 1;
                } else if let Some(row) = location.row() {
                    misses.push(Miss { position, row, shard: shard as u32 });
                }
            }
            for &(position, row) in &block[..found] {
                // SAFETY: as above for `out`; `row` points at `width` floats of a resident row, which the
                // shard's read lock keeps in place and unwritten.
                unsafe {
                    let out = read.out.slice(position as usize * width, width);
                    out.copy_from_slice(std::slice::from_raw_parts(row, width));
                }
            }
        }
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
            let cold = self.read_cold(reading, read.keys, chunk)?;
            for (number, miss) in chunk.iter().enumerate() {
                let Some(row) = cold.row(number) else {
                    again.extend(self.read_resident(read, miss.shard as usize, &[miss.position]));
                    continue;
                };
                // SAFETY: this thread alone works on the misses of this call.
                let out = unsafe { read.out.slice(miss.position as usize * read.width, read.width) };
                out.copy_from_slice(&row[read.start..read.start + read.width]);
            }
            // The caller has its rows: when another one cannot be written out to make room, the next
            // change reports it.
            let _ = self.admit_cold(read.keys, chunk, &cold, Reason::Use);
        }
        Ok(again)
    }

    /// The value a row would be born with.
    fn initial(&self, table: u32, id: u64, part: Part, out: &mut [f32]) {
        match part {
            Part::Weights => {
                self.tables.read()[table as usize].initializer.fill(id, out);
            }
            Part::State => self.core.spec.optimizer.initialize_state(out),
        }
    }
}

/// Start loading the first line of a row.
#[inline]
pub(crate) fn prefetch(row: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(row.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}
