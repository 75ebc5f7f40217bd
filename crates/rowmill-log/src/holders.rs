//! Which rows the index names, and which rows each kept version names.
//!
//! A row is retained once, while the index or any version names it. So the index may release a row that a
//! version still needs, and the row stays; its last holder frees it. A row number never changes its meaning
//! while it is held. Cleaning moves a row for all its holders at once.
//!
//! The sets exist only in a store that has versions: they take one bit per row number and version.

use rowmill_sync::{RwLock, ranks};

use super::row_set::RowSet;

/// The holders of the rows of a log.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// Rows of the index.
    current: RowSet,
    kept: RwLock<Kept, ranks::LogVersions>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Rows of each version, by its number.
    versions: Vec<(u64, RowSet)>,
    /// Rows of the checkpoint being made, as of its cut, and the version that it becomes.
    making: Option<(RowSet, Option<u64>)>,
}

impl Kept {
    fn hold(&self, row: u32) -> bool {
        self.versions.iter().any(|(_, rows)| rows.has(row))
    }
}

impl Holders {
    /// The index names `row`.
    pub(super) fn name(&self, row: u32) {
        self.current.insert(row);
    }

    /// The index no longer names `row`. Returns whether a version does.
    pub(super) fn release(&self, row: u32) -> bool {
        // Under the lock, so that a version that is dropped concurrently sees this row either still named by
        // the index or already its own.
        let kept = self.kept.read();
        self.current.remove(row);
        kept.hold(row)
    }

    /// Whether a version names `row`.
    pub(super) fn keep(&self, row: u32) -> bool {
        self.kept.read().hold(row)
    }

    /// The cut of a checkpoint: remember the rows that the index names now. With `version`, keep them.
    pub(super) fn cut(&self, version: Option<u64>) {
        let mut kept = self.kept.write();
        if let Some(number) = version {
            kept.versions.push((number, self.current.copy()));
        }
        kept.making = Some((self.current.copy(), version));
    }

    /// Count a row that was appended after the cut to the checkpoint being made.
    pub(super) fn append_to_cut(&self, row: u32) {
        let kept = self.kept.read();
        let Some((rows, version)) = &kept.making else { return };
        rows.insert(row);
        for (_, rows) in kept.versions.iter().filter(|(number, _)| Some(*number) == *version) {
            rows.insert(row);
        }
    }

    /// The rows of the checkpoint being made.
    pub(super) fn finish_cut(&self) -> Option<RowSet> {
        Some(self.kept.write().making.take()?.0)
    }

    /// Add a version that was loaded. Returns the rows that nothing else holds yet.
    pub(super) fn adopt(&self, number: u64, rows: RowSet) -> Vec<u32> {
        let mut kept = self.kept.write();
        let alone = rows.rows().filter(|&row| !self.current.has(row) && !kept.hold(row)).collect();
        kept.versions.push((number, rows));
        alone
    }

    /// Remove a version, if there is one. Returns the rows that nothing holds any more.
    pub(super) fn let_go(&self, number: u64) -> Vec<u32> {
        let mut kept = self.kept.write();
        let Some(at) = kept.versions.iter().position(|(version, _)| *version == number) else {
            return Vec::new();
        };
        let (_, rows) = kept.versions.remove(at);
        rows.rows().filter(|&row| !self.current.has(row) && !kept.hold(row)).collect()
    }

    /// Row `old` was copied to `new`: all versions name `new` from now on. Returns whether there was one.
    pub(super) fn follow(&self, old: u32, new: u32) -> bool {
        let mut any = false;
        for (_, rows) in &self.kept.read().versions {
            if rows.remove(old) {
                rows.insert(new);
                any = true;
            }
        }
        any
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let kept = self.kept.read();
        let making = kept.making.as_ref().map_or(0, |(rows, _)| rows.bytes());
        self.current.bytes() + making + kept.versions.iter().map(|(_, rows)| rows.bytes()).sum::<usize>()
    }
}
