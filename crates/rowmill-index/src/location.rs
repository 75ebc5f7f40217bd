//! Where a row is, and where its index entry is.

use std::num::NonZeroU32;

/// Where a row is: a slot in memory, or a row number on the device. 32 bits of an index entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location(u32);

impl Location {
    /// Set when the row is in memory.
    const RESIDENT: u32 = 1 << 31;
    /// Largest slot: one value less than 31 bits offer, because an entry stores the location plus one
    /// and zero means empty.
    pub(crate) const SLOT_MAX: u32 = Self::RESIDENT - 2;
    /// Largest row number.
    pub const ROW_MAX: u32 = Self::RESIDENT - 1;

    /// A row in memory.
    #[inline]
    pub fn resident(slot: u32) -> Self {
        debug_assert!(slot <= Self::SLOT_MAX, "slot {slot} needs more than 31 bits");
        Self(slot | Self::RESIDENT)
    }

    /// A row on the device.
    #[inline]
    pub fn device(row: u32) -> Self {
        debug_assert!(row <= Self::ROW_MAX, "row number {row} needs more than 31 bits");
        Self(row)
    }

    /// The slot, if the row is in memory.
    #[inline]
    pub fn slot(self) -> Option<u32> {
        if self.is_resident() { Some(self.0 & !Self::RESIDENT) } else { None }
    }

    /// The row number, if the row is on the device.
    #[inline]
    pub fn row(self) -> Option<u32> {
        if self.is_resident() { None } else { Some(self.0) }
    }

    /// Whether the row is in memory.
    #[inline]
    pub fn is_resident(self) -> bool {
        self.0 & Self::RESIDENT != 0
    }

    /// The word an index entry keeps: never zero.
    #[inline]
    pub(super) fn stored(self) -> u32 {
        self.0 + 1
    }

    /// The location in a word of an index. `None` where there is no row: the word is zero.
    #[inline]
    pub fn of_stored(word: u32) -> Option<Self> {
        if word == 0 { None } else { Some(Self::from_stored(word)) }
    }

    /// The location of a word an index entry keeps, which must not be zero.
    #[inline]
    pub(super) fn from_stored(word: u32) -> Self {
        debug_assert_ne!(word, 0, "an empty entry has no location");
        Self(word.wrapping_sub(1))
    }
}

impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.slot() {
            Some(slot) => write!(f, "slot {slot}"),
            None => write!(f, "row {}", self.0),
        }
    }
}

/// A handle to an entry of one index, so that what follows a lookup need not look again.
///
/// Valid until the next insert or remove of that index. Never zero, so that `Option<EntryRef>` is four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef(NonZeroU32);

impl EntryRef {
    #[inline]
    pub(super) fn new(value: u32) -> Self {
        Self(NonZeroU32::new(value).expect("indexes number their entries from one"))
    }

    #[inline]
    pub(super) fn get(self) -> u32 {
        self.0.get()
    }
}

/// An id that has an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its entry.
    pub entry: EntryRef,
    /// Where its row is.
    pub location: Location,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_row_numbers_do_not_collide() {
        for value in [0, 1, 12_345, Location::SLOT_MAX] {
            let (resident, device) = (Location::resident(value), Location::device(value));
            assert_eq!((resident.slot(), resident.row()), (Some(value), None));
            assert_eq!((device.slot(), device.row()), (None, Some(value)));
            for location in [resident, device] {
                assert_ne!(location.stored(), 0);
                assert_eq!(Location::from_stored(location.stored()), location);
            }
        }
        assert_eq!(Location::device(Location::ROW_MAX).row(), Some(Location::ROW_MAX));
        assert_eq!(size_of::<Option<EntryRef>>(), 4);
    }
}
