//! The description of a namespace, of blocks or of rows.

/// The content of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Blocks only.
    Blocks,
    /// Rows. Dense tables can also be read as blocks.
    Rows,
}

/// A namespace of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number, from 1.
    pub number: u32,
    /// Its content.
    pub content: Content,
    /// A UUID that stays with the data.
    pub guid: [u8; 16],
    /// Its size in blocks.
    pub blocks: u64,
    /// A block has 2 to this power bytes: 9 to 16.
    pub block_shift: u8,
    /// Writes of blocks are refused.
    pub is_write_protected: bool,
    /// Deallocated blocks read as zeros.
    pub is_zero_after_deallocate: bool,
}
