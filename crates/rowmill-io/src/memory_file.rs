//! Content of one file of a [`crate::MemoryVolume`], with simulated power loss.
//!
//! Between syncs, a file keeps the blocks as of the last sync and an ordered list of the changes since. A
//! crash restores those blocks and applies a random subset of the changes, sector by sector: a disk
//! guarantees no more than that.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use rowmill_splitmix::SplitMix64;

use crate::BLOCK_BYTES;

/// Unit that a disk writes atomically, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// Allocation unit, in bytes. A page that was never written is not allocated.
const PAGE_BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(crate) struct MemoryFile {
    pages: Vec<Option<Box<[u8]>>>,
    bytes: u64,
    unsynced: Option<Unsynced>,
}

/// Changes since the last sync.
#[derive(Debug, Default)]
struct Unsynced {
    bytes_before: u64,
    /// Content, at the last sync, of every block changed since then.
    before: BTreeMap<u64, Vec<u8>>,
    changes: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Discard { offset: u64, bytes: u64 },
    Truncate,
}

/// How many unsynced changes a crash kept, lost or tore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fates {
    pub(crate) kept: usize,
    pub(crate) lost: usize,
    pub(crate) torn: usize,
}

impl MemoryFile {
    /// An empty file. A `crashable` file records unsynced changes.
    pub(crate) fn new(crashable: bool) -> Self {
        Self { unsynced: crashable.then(Unsynced::default), ..Self::default() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Read `into.len()` bytes from `offset`.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if offset + into.len() as u64 > self.bytes {
            return Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the span extends beyond the end of the file",
            ));
        }
        for_each_page(offset, into.len(), |page, within, part| {
            let part = &mut into[part];
            match &self.pages[page] {
                Some(page) => part.copy_from_slice(&page[within..within + part.len()]),
                None => part.fill(0),
            }
        });
        Ok(())
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.remember(offset, bytes.len() as u64, || Change::Write { offset, bytes: bytes.to_vec() });
        self.put(offset, bytes);
    }

    pub(crate) fn discard(&mut self, offset: u64, bytes: u64) {
        self.remember(offset, bytes, || Change::Discard { offset, bytes });
        self.zero(offset, bytes);
    }

    pub(crate) fn truncate(&mut self) {
        self.remember(0, self.bytes, || Change::Truncate);
        self.pages.clear();
        self.bytes = 0;
    }

    pub(crate) fn sync(&mut self) {
        if let Some(unsynced) = &mut self.unsynced {
            *unsynced = Unsynced { bytes_before: self.bytes, ..Unsynced::default() };
        }
    }

    /// Simulate a power loss: the content that is found afterwards.
    pub(crate) fn after_crash(&mut self, seeded: &mut SplitMix64, fates: &mut Fates) -> Self {
        let unsynced = self.unsynced.take().expect("only crashable volumes crash");
        let mut file = Self { pages: std::mem::take(&mut self.pages), bytes: self.bytes, unsynced: None };
        for (block, content) in &unsynced.before {
            file.put(block * BLOCK_BYTES as u64, content);
        }
        file.set_bytes(unsynced.bytes_before);
        // In a quarter of all crashes, all changes are lost or all survive: both happen in practice and are
        // easy to get wrong.
        let weather = seeded.below(8);
        for change in unsynced.changes {
            let fate = if weather < 2 { weather } else { seeded.below(3) };
            match fate {
                0 => fates.lost += 1,
                1 => {
                    fates.kept += 1;
                    file.redo(&change);
                }
                _ => {
                    fates.torn += 1;
                    file.redo_torn(&change, seeded);
                }
            }
        }
        file.unsynced = Some(Unsynced { bytes_before: file.bytes, ..Unsynced::default() });
        file
    }

    /// Record a change that is about to be made to the given range, as far as a crash needs it.
    fn remember(&mut self, offset: u64, bytes: u64, change: impl FnOnce() -> Change) {
        let Some(mut unsynced) = self.unsynced.take() else { return };
        let block_bytes = BLOCK_BYTES as u64;
        for block in offset / block_bytes..(offset + bytes).div_ceil(block_bytes) {
            unsynced.before.entry(block).or_insert_with(|| {
                let start = (block * block_bytes).min(self.bytes);
                let mut content = vec![0; block_bytes.min(self.bytes - start) as usize];
                self.read(start, &mut content).expect("the range lies within the file");
                content
            });
        }
        unsynced.changes.push(change());
        self.unsynced = Some(unsynced);
    }

    fn redo(&mut self, change: &Change) {
        match change {
            Change::Write { offset, bytes } => self.put(*offset, bytes),
            Change::Discard { offset, bytes } => self.zero(*offset, *bytes),
            Change::Truncate => self.set_bytes(0),
        }
    }

    /// Apply a random half of the sectors of a change. A truncation changes only metadata and cannot tear.
    fn redo_torn(&mut self, change: &Change, seeded: &mut SplitMix64) {
        match change {
            Change::Write { offset, bytes } => for_each_sector(*offset, bytes.len() as u64, |start, part| {
                if seeded.one_in(2) {
                    self.put(start, &bytes[part]);
                }
            }),
            Change::Discard { offset, bytes } => for_each_sector(*offset, *bytes, |start, part| {
                if seeded.one_in(2) {
                    self.zero(start, part.len() as u64);
                }
            }),
            Change::Truncate => {
                if seeded.one_in(2) {
                    self.set_bytes(0);
                }
            }
        }
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.bytes = self.bytes.max(offset + bytes.len() as u64);
        self.pages.resize_with((self.bytes as usize).div_ceil(PAGE_BYTES), || None);
        for_each_page(offset, bytes.len(), |page, within, part| {
            let page = self.pages[page].get_or_insert_with(|| vec![0; PAGE_BYTES].into_boxed_slice());
            page[within..within + part.len()].copy_from_slice(&bytes[part]);
        });
    }

    /// Zero the range, up to the end of the file. Pages that become empty are freed.
    fn zero(&mut self, offset: u64, bytes: u64) {
        let end = (offset + bytes).min(self.bytes);
        for_each_page(offset, end.saturating_sub(offset) as usize, |page, within, part| {
            if part.len() == PAGE_BYTES {
                self.pages[page] = None;
            } else if let Some(page) = &mut self.pages[page] {
                page[within..within + part.len()].fill(0);
            }
        });
    }

    /// Truncate the file, or extend it with zeros.
    fn set_bytes(&mut self, bytes: u64) {
        if bytes < self.bytes {
            // If the file grows again, the bytes beyond this end must read as zeros.
            self.zero(bytes, self.bytes - bytes);
        }
        self.bytes = bytes;
        self.pages.resize_with((bytes as usize).div_ceil(PAGE_BYTES), || None);
    }
}

/// Call `visit(page, offset in the page, part of the range)` for every page of a range.
fn for_each_page(offset: u64, bytes: usize, visit: impl FnMut(usize, usize, std::ops::Range<usize>)) {
    let mut visit = visit;
    let mut done = 0;
    while done < bytes {
        let position = offset as usize + done;
        let within = position % PAGE_BYTES;
        let part = (PAGE_BYTES - within).min(bytes - done);
        visit(position / PAGE_BYTES, within, done..done + part);
        done += part;
    }
}

/// Call `visit(start, part of the range)` for every sector of a range.
fn for_each_sector(offset: u64, bytes: u64, mut visit: impl FnMut(u64, std::ops::Range<usize>)) {
    let sector = SECTOR_BYTES as u64;
    let mut start = offset;
    while start < offset + bytes {
        let end = ((start / sector + 1) * sector).min(offset + bytes);
        visit(start, (start - offset) as usize..(end - offset) as usize);
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(file: &MemoryFile) -> Vec<u8> {
        let mut bytes = vec![0; file.bytes() as usize];
        file.read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn synced_bytes_survive_every_crash_and_unsynced_ones_survive_by_sectors() {
        let mut seen = Fates::default();
        let mut torn_inside_a_block = false;
        for seed in 0..200 {
            let mut file = MemoryFile::new(true);
            file.write(0, &[1; 3 * BLOCK_BYTES]);
            file.sync();
            file.write(BLOCK_BYTES as u64, &[2; 3 * BLOCK_BYTES]);
            let found = content(&file.after_crash(&mut SplitMix64::new(seed), &mut seen));
            assert_eq!(found[..BLOCK_BYTES], [1; BLOCK_BYTES], "seed {seed}: an untouched block changed");
            assert!((3 * BLOCK_BYTES..=4 * BLOCK_BYTES).contains(&found.len()));
            for sector in found.chunks(SECTOR_BYTES) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "seed {seed}: a sector is torn");
            }
            let second = &found[BLOCK_BYTES..2 * BLOCK_BYTES];
            torn_inside_a_block |= second.contains(&1) && second.contains(&2);
        }
        assert!(seen.kept > 0 && seen.lost > 0 && seen.torn > 0 && torn_inside_a_block, "{seen:?}");
    }

    #[test]
    fn a_lost_truncation_restores_the_old_content() {
        let (mut old, mut empty) = (0, 0);
        for seed in 0..100 {
            let mut file = MemoryFile::new(true);
            file.write(0, b"old content");
            file.sync();
            file.truncate();
            match content(&file.after_crash(&mut SplitMix64::new(seed), &mut Fates::default())).as_slice() {
                b"old content" => old += 1,
                b"" => empty += 1,
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        assert!(old > 0 && empty > 0);
    }

    #[test]
    fn holes_and_discarded_ranges_read_as_zeros() {
        let mut file = MemoryFile::new(false);
        file.write(2 * PAGE_BYTES as u64, &vec![9; 2 * PAGE_BYTES]);
        file.discard(2 * PAGE_BYTES as u64 + 512, PAGE_BYTES as u64);
        let bytes = content(&file);
        assert!(bytes[..2 * PAGE_BYTES].iter().all(|byte| *byte == 0));
        assert_eq!(bytes[2 * PAGE_BYTES..2 * PAGE_BYTES + 512], [9; 512]);
        assert!(bytes[2 * PAGE_BYTES + 512..3 * PAGE_BYTES + 512].iter().all(|byte| *byte == 0));
        assert!(bytes[3 * PAGE_BYTES + 512..].iter().all(|byte| *byte == 9));
    }
}
