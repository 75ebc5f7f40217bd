//! Reading rows without changing anything but the cache: evaluation, serving, scans.

use crate::StoreError;
use crate::group::Group;
use crate::keys::Keys;
use crate::log::Reading;
use crate::scatter::Scatter;
use crate::shard::Miss;
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
                    state.touch(table, place, slot);
                    let row = state.row(&self.core, slot).wrapping_add(read.start);
                    prefetch(row);
                    block[found] = (position, row);
                    found += 1;
                } else if let Some(row) = location.row() {
                    misses.push(Miss { position, row });
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
        let stride = self.core.layout.stride / 4;
        let mut again = Vec::new();
        let mut rows = Vec::new();
        for chunk in misses.chunks(self.cold_chunk()) {
            rows.resize(chunk.len() * stride, 0.0_f32);
            let mut arrived = vec![false; chunk.len()];
            self.read_cold(reading, read.keys, chunk, |number, bytes| {
                let row = &mut rows[number * stride..][..stride];
                copy_row(bytes, row);
                let position = chunk[number].position as usize;
                // SAFETY: this thread alone works on the misses of this call.
                let out = unsafe { read.out.slice(position * read.width, read.width) };
                out.copy_from_slice(&row[read.start..read.start + read.width]);
                arrived[number] = true;
            })?;
            for (number, miss) in chunk.iter().enumerate() {
                if arrived[number] {
                    // The caller has its row: when another one cannot be written out to make room, the
                    // next change reports it.
                    let _ = self.admit(read.keys, *miss, &rows[number * stride..][..stride]);
                } else {
                    let shard = self.home(read.keys, miss.position);
                    again.extend(self.read_resident(read, shard, &[miss.position]));
                }
            }
        }
        Ok(again)
    }

    /// Bring a row just read into memory, unless it has moved meanwhile.
    pub(crate) fn admit(&self, keys: &Keys, miss: Miss, row: &[f32]) -> Result<(), StoreError> {
        let (table, id) = keys.at(miss.position);
        let mut state = self.shards[self.home(keys, miss.position)].state.write();
        if let Some(place) = state.index(table).find(id)
            && state.index(table).location(place).row() == Some(miss.row)
        {
            state.admit(&self.core, table, id, place, miss.row, as_bytes(row))?;
        }
        Ok(())
    }

    /// The value a row would be born with.
    fn initial(&self, table: u32, id: u64, part: Part, out: &mut [f32]) {
        match part {
            Part::Weights => {
                self.tables.read()[table as usize].initializer.fill(id, out);
            }
            Part::State => out.fill(self.core.spec.optimizer.initial_state()),
        }
    }

    /// The shard a position belongs to.
    pub(crate) fn home(&self, keys: &Keys, position: u32) -> usize {
        let (table, id) = keys.at(position);
        crate::keys::home(self.tables.read()[table as usize].spec.ids, id, self.shards.len())
    }
}

/// Copy a row's bytes, which have no alignment, into floats.
pub(crate) fn copy_row(bytes: &[u8], row: &mut [f32]) {
    assert_eq!(bytes.len(), row.len() * 4, "a row of another stride");
    // SAFETY: equal lengths (asserted), no overlap (`row` is exclusively borrowed), any bits are an f32.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), row.as_mut_ptr().cast::<u8>(), bytes.len()) };
}

/// The bytes of a row.
pub(crate) fn as_bytes(row: &[f32]) -> &[u8] {
    // SAFETY: floats are plain bytes without padding; the length covers exactly the slice.
    unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), size_of_val(row)) }
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
