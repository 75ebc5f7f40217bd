//! Log page 0xC0: the tables of a namespace of rows. Hosts find table numbers by name here, and where the rows of dense
//! tables are in the namespace's blocks.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::vendor::{RowDtype, VENDOR_VERSION};

/// The first 16 bytes of the page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TablesHeader {
    /// Version of the format: 1.
    pub version: U16,
    /// Bytes of one entry: 296.
    pub entry_bytes: U16,
    /// Entries that follow.
    pub tables: U32,
    /// Changes with the tables: all of them are new after a fill.
    pub generation: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    table: U32,
    dim: U32,
    rows: U64,
    block: U64,
    stride: U32,
    dtype: u8,
    index: u8,
    name_bytes: u8,
    reserved: u8,
    name: [u8; 256],
    group: U32,
    reserved_292: [u8; 4],
}

/// How ids of a table map to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableIndex {
    /// Any 64-bit ids. Rows cannot be read as blocks.
    Hash,
    /// Ids in [0, rows). Row `id` starts at byte `id * stride` after the start of block `block`.
    Dense {
        /// Ids are below this.
        rows: u64,
        /// The first block of the table.
        block: u64,
        /// Bytes from one row to the next.
        stride: u32,
    },
}

/// One table of a namespace of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// The number that stage commands use.
    pub table: u32,
    /// The name, at most 255 bytes.
    pub name: String,
    /// Weights per row.
    pub dim: u32,
    /// How weights are stored.
    pub dtype: RowDtype,
    /// How ids map to rows.
    pub index: TableIndex,
    /// The group: one stage command names tables of one group only.
    pub group: u32,
}

/// The log page.
///
/// # Panics
///
/// If a name is longer than 255 bytes.
pub fn encode_tables(tables: &[TableEntry], generation: u64) -> Vec<u8> {
    let header = TablesHeader {
        version: VENDOR_VERSION.into(),
        entry_bytes: (size_of::<Layout>() as u16).into(),
        tables: (tables.len() as u32).into(),
        generation: generation.into(),
    };
    let mut bytes = header.as_bytes().to_vec();
    for entry in tables {
        let mut layout = Layout {
            table: entry.table.into(),
            dim: entry.dim.into(),
            dtype: entry.dtype as u8,
            group: entry.group.into(),
            name_bytes: u8::try_from(entry.name.len()).expect("a name has at most 255 bytes"),
            ..Layout::new_zeroed()
        };
        layout.name[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
        if let TableIndex::Dense { rows, block, stride } = entry.index {
            layout.index = 1;
            (layout.rows, layout.block, layout.stride) = (rows.into(), block.into(), stride.into());
        }
        bytes.extend(layout.as_bytes());
    }
    bytes
}

/// Bytes of the whole page, from its beginning; `None` if that is malformed.
pub fn tables_bytes(page: &[u8]) -> Option<usize> {
    let (header, _) = TablesHeader::read_from_prefix(page).ok()?;
    let entries = header.tables.get() as usize;
    (header.version.get() == VENDOR_VERSION)
        .then(|| size_of::<TablesHeader>() + entries * usize::from(header.entry_bytes.get()))
}

/// The header and the tables of a page; `None` if it is malformed.
pub fn parse_tables(page: &[u8]) -> Option<(TablesHeader, Vec<TableEntry>)> {
    let (header, rest) = TablesHeader::read_from_prefix(page).ok()?;
    if header.version.get() != VENDOR_VERSION || header.entry_bytes.get() as usize != size_of::<Layout>() {
        return None;
    }
    let (layouts, _) = <[Layout]>::ref_from_prefix_with_elems(rest, header.tables.get() as usize).ok()?;
    let tables = layouts.iter().map(|layout| {
        let index = match layout.index {
            0 => TableIndex::Hash,
            1 => TableIndex::Dense {
                rows: layout.rows.get(),
                block: layout.block.get(),
                stride: layout.stride.get(),
            },
            _ => return None,
        };
        Some(TableEntry {
            table: layout.table.get(),
            name: std::str::from_utf8(&layout.name[..layout.name_bytes as usize]).ok()?.to_owned(),
            dim: layout.dim.get(),
            dtype: RowDtype::from_byte(layout.dtype)?,
            index,
            group: layout.group.get(),
        })
    });
    Some((header, tables.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_survive_their_page_and_damaged_pages_are_refused() {
        let table = |number, index| TableEntry {
            table: number,
            name: "x".repeat(255),
            dim: 32,
            dtype: RowDtype::Bf16,
            index,
            group: number + 1,
        };
        let dense = TableIndex::Dense { rows: 1 << 33, block: 5, stride: 64 };
        let tables = vec![table(7, TableIndex::Hash), table(8, dense)];
        let page = encode_tables(&tables, 9);
        assert_eq!((page.len(), tables_bytes(&page[..16])), (16 + 2 * 296, Some(16 + 2 * 296)));
        let (header, parsed) = parse_tables(&page).unwrap();
        assert_eq!((parsed, header.generation.get()), (tables, 9));
        for (at, value) in [(0, 2), (2, 0), (4, 3), (16 + 28, 9), (16 + 29, 2), (16 + 32, 0xff)] {
            let mut damaged = page.clone();
            damaged[at] = value;
            assert!(parse_tables(&damaged).is_none(), "byte {at}");
        }
    }
}
