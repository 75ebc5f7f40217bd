//! The identity of a row.

use serde::{Deserialize, Serialize};

/// A category (one embedding table) of a store. Assigned when the table is created, and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Category(pub u32);

/// The identity of a row: the category and the full 64-bit id. No two ids share a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// The table the id belongs to.
    pub category: Category,
    /// The id, all 64 bits. Negative ids of callers with signed ids keep their bit pattern.
    pub id: u64,
}

impl std::fmt::Display for RowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "category {} id {}", self.category.0, self.id as i64)
    }
}
