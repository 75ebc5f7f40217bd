//! The tables of a store as hosts see them: numbers, their place among the blocks of the namespace, rows read as blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rowmill_nvme::{AsOf, BlockRange, ErrorPlace, RowDtype, Status, TableEntry, TableIndex, encode_tables};
use rowmill_store::{Dtype, IdBag, IdRange, Pooling, Store, StoreError, Table};
use zerocopy::IntoBytes;

use crate::fault::Fault;
use crate::{BLOCK_BYTES, NAMESPACE};

/// Rows of a dense table as blocks.
#[derive(Clone, Copy, Debug)]
struct DenseRows {
    rows: u64,
    /// The first block of the table.
    block: u64,
    /// Bytes of a row's weights.
    stride: u64,
}

impl DenseRows {
    fn blocks(self) -> u64 {
        (self.rows * self.stride).div_ceil(BLOCK_BYTES)
    }
}

/// The tables of one store. The store is closed when the last user of the tables is done.
#[derive(Debug)]
pub(crate) struct Tables {
    /// None before the first fill.
    store: Option<Arc<Store>>,
    /// In the order of their creation. The number of a table is its position.
    placed: Vec<(Table, Option<DenseRows>)>,
    blocks: u64,
    /// Differs between stores that follow each other in one namespace.
    generation: u64,
    /// Frames of the feed up to this one are applied.
    sequence: AtomicU64,
}

impl Tables {
    pub(crate) fn of(store: Arc<Store>, AsOf { sequence, generation }: AsOf) -> Result<Tables, StoreError> {
        let names = store.table_names();
        let mut tables = names.iter().map(|name| store.open_table(name)).collect::<Result<Vec<_>, _>>()?;
        tables.sort_by_key(Table::category);
        let mut blocks = 0;
        let place = tables.into_iter().map(|table| {
            let IdRange::Dense { rows } = table.spec().ids else { return (table, None) };
            let stride = u64::from(table.spec().dim) * stored(&table).bytes() as u64;
            let dense = DenseRows { rows, block: blocks, stride };
            blocks += dense.blocks();
            (table, Some(dense))
        });
        let placed = place.collect();
        Ok(Tables { store: Some(store), placed, blocks, generation, sequence: AtomicU64::new(sequence) })
    }

    /// No tables.
    pub(crate) fn none() -> Tables {
        Tables { store: None, placed: Vec::new(), blocks: 0, generation: 0, sequence: AtomicU64::new(0) }
    }

    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// All frames of the feed up to this one are applied.
    pub(crate) fn advance(&self, sequence: u64) {
        self.sequence.store(sequence, Ordering::Release);
    }

    /// The table of a name.
    pub(crate) fn named(&self, name: &str) -> Option<&Table> {
        self.placed.iter().map(|(table, _)| table).find(|table| table.name() == name)
    }

    /// What lookups from now on see, or later frames.
    pub(crate) fn as_of(&self) -> AsOf {
        AsOf { sequence: self.sequence.load(Ordering::Acquire), generation: self.generation }
    }

    /// Blocks of the namespace. Linux takes a namespace without blocks for an inactive one.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.max(1)
    }

    /// The table of a number.
    pub(crate) fn table(&self, number: u32) -> Result<&Table, Status> {
        self.placed.get(number as usize).map(|(table, _)| table).ok_or(Status::UNKNOWN_TABLE)
    }

    /// Log page 0xC0.
    pub(crate) fn page(&self) -> Vec<u8> {
        let entry = |(number, (table, dense)): (u32, &(Table, Option<DenseRows>))| TableEntry {
            table: number,
            name: table.name().to_owned(),
            dim: table.spec().dim,
            dtype: stored(table),
            group: table.group_number(),
            index: dense.map_or(TableIndex::Hash, |dense| TableIndex::Dense {
                rows: dense.rows,
                block: dense.block,
                stride: dense.stride as u32,
            }),
        };
        encode_tables(&(0..).zip(&self.placed).map(entry).collect::<Vec<_>>(), self.generation)
    }

    /// Where the row of an id is, for the error log.
    pub(crate) fn place(&self, number: u32, id: u64) -> ErrorPlace {
        let dense = self.placed.get(number as usize).and_then(|(_, dense)| *dense);
        let block = dense.map_or(0, |dense| dense.block + id * dense.stride / BLOCK_BYTES);
        ErrorPlace { namespace: NAMESPACE, block, table: Some(number) }
    }

    /// The content of blocks: rows of dense tables, zeros elsewhere.
    pub(crate) fn read(&self, blocks: BlockRange) -> Result<Vec<u8>, Fault> {
        let start = blocks.first * BLOCK_BYTES;
        let mut content = vec![0; (blocks.count * BLOCK_BYTES) as usize];
        let end = start + content.len() as u64;
        for (number, (table, dense)) in (0..).zip(&self.placed) {
            let Some(dense) = dense else { continue };
            let first_byte = dense.block * BLOCK_BYTES;
            // The bytes of this table that the blocks hold, counted from the start of the table.
            let from = start.saturating_sub(first_byte);
            let to = end.saturating_sub(first_byte).min(dense.rows * dense.stride);
            if from >= to {
                continue;
            }
            let ids: Vec<u64> = (from / dense.stride..to.div_ceil(dense.stride)).collect();
            let rows = read_rows(table, &ids).map_err(|error| {
                let id = find_unreadable(&ids, &|ids| read_rows(table, ids).is_ok());
                Fault::of_store(&error, self.place(number, id))
            })?;
            let skipped = (from % dense.stride) as usize;
            let into = &mut content[(first_byte + from - start) as usize..][..(to - from) as usize];
            into.copy_from_slice(&rows[skipped..][..(to - from) as usize]);
        }
        Ok(content)
    }
}

/// The weights of rows as they are stored. A row that was never written has its initial values.
fn read_rows(table: &Table, ids: &[u64]) -> Result<Vec<u8>, StoreError> {
    let offsets: Vec<i64> = (0..=ids.len() as i64).collect();
    let bags =
        [(table, IdBag { ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum })];
    let floats = ids.len() * table.spec().dim as usize;
    if stored(table) == RowDtype::Fp32 {
        let mut rows = vec![0_f32; floats];
        table.store().evaluate_in_turn(&bags, &mut rows)?;
        Ok(rows.as_bytes().to_vec())
    } else {
        let mut rows = vec![0_u16; floats];
        table.store().evaluate_in_turn(&bags, &mut rows)?;
        Ok(rows.as_bytes().to_vec())
    }
}

/// Of ids that cannot be read together, one that cannot be read.
pub(super) fn find_unreadable(ids: &[u64], is_readable: &dyn Fn(&[u64]) -> bool) -> u64 {
    let (mut from, mut to) = (0, ids.len());
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        if is_readable(&ids[from..middle]) { from = middle } else { to = middle }
    }
    ids[from]
}

/// How lookups see the weights of a table.
fn stored(table: &Table) -> RowDtype {
    if table.spec().dtype == Dtype::F32 { RowDtype::Fp32 } else { RowDtype::Bf16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unreadable_id_is_found() {
        let ids: Vec<u64> = (10..23).collect();
        for bad in &ids {
            assert_eq!(find_unreadable(&ids, &|part| !part.contains(bad)), *bad);
        }
        assert_eq!(find_unreadable(&ids, &|part| !part.contains(&12) && !part.contains(&21)), 12);
    }
}
