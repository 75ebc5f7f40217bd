//! Unique by category: the distinct ids of every category of a fused group, each category for itself, so that several
//! threads can share a batch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::segment_unique::distinct;
use crate::{SKIP, UniqueScratch};

/// What is to be done for each category of a call, given its number and buffers that no other thread uses meanwhile.
pub type CategoryWork<'a> = dyn Fn(usize, &mut UniqueScratch) + Sync + 'a;

/// The lookups of one category, and where its distinct ids go.
struct CategoryIds<'a> {
    /// Ids, each with where its position goes.
    segments: Vec<(&'a [u64], &'a mut [u32])>,
    padding: Option<u64>,
    /// Room for all ids.
    unique: &'a mut [u64],
    count: &'a mut u32,
}

impl CategoryIds<'_> {
    /// Positions count from this category's first distinct id.
    fn find(&mut self, scratch: &mut UniqueScratch) {
        let segments = self.segments.iter_mut().map(|(ids, inverse)| (*ids, &mut **inverse));
        // SAFETY: `unique` is as long as the total that is given.
        let count =
            unsafe { distinct(self.unique.len(), segments, self.padding, scratch, self.unique.as_mut_ptr()) };
        *self.count = count as u32;
    }

    /// Positions count from the first id of the group.
    fn shift(&mut self, base: u32) {
        for inverse in self.segments.iter_mut().flat_map(|(_, inverse)| inverse.iter_mut()) {
            *inverse = if *inverse == SKIP { SKIP } else { *inverse + base };
        }
    }
}

/// [`segment_unique`](crate::segment_unique()) of every category of a fused group in one pass: the ids of category `c` are
/// `ids[offsets[c]..offsets[c + 1]]`, the distinct ones come to the front of `unique` category by category, `counts[c]` of
/// them, and `inverse` counts through all categories (`FusedRec`, Section 3: equal ids of different categories stay apart).
/// Returns how many are distinct.
///
/// `spread(n, work)` calls `work(category, scratch)` once for each category below `n`, on threads of its choice, which changes
/// no result.
///
/// # Panics
/// If `unique` and `inverse` are not as long as `ids`, `paddings`, `counts` and the categories differ in number, offsets do
/// not rise from 0 to the number of ids, or there are 2^31 ids or more.
pub fn segment_unique_by_category(
    ids: &[u64],
    offsets: &[usize],
    paddings: &[Option<u64>],
    unique: &mut [u64],
    counts: &mut [u32],
    inverse: &mut [u32],
    spread: impl Fn(usize, &CategoryWork<'_>),
) -> usize {
    assert_eq!(offsets.len(), counts.len() + 1, "one offset more than categories");
    assert_eq!(paddings.len(), counts.len(), "a padding or none per category");
    assert_eq!(
        (offsets[0], offsets[counts.len()]),
        (0, ids.len()),
        "offsets run from 0 to the number of ids"
    );
    let mut lookups = Lookups::new(ids, inverse);
    let segments = offsets.windows(2).map(|ends| vec![lookups.take(ends[1] - ends[0])]).collect();
    unique_by_category(segments, paddings, unique, counts, spread)
}

/// Owner unique: the distinct rows that several ranks ask one rank for (`FusedRec`, Section 3: deferred to the owner, who
/// knows the category of every id and loses none).
///
/// The distinct ids of every category come to the front of `unique`, category by category, `unique_counts[c]` of them in
/// order of first occurrence, and the position of every received id among them to `inverse`. Returns how many are distinct.
///
/// `received` holds for every rank, one after the other, its ids of every category: `counts[r * C + c]` of them. `spread` is
/// that of [`segment_unique_by_category`].
///
/// # Panics
/// If lengths do not agree: `unique` and `inverse` are as long as `received`, `counts` is a whole number of times
/// `unique_counts`, and sums up to the number of ids, which is below 2^31.
pub fn owner_unique(
    received: &[u64],
    counts: &[u32],
    unique: &mut [u64],
    unique_counts: &mut [u32],
    inverse: &mut [u32],
    spread: impl Fn(usize, &CategoryWork<'_>),
) -> usize {
    let categories = unique_counts.len();
    assert!(counts.len().is_multiple_of(categories.max(1)), "a count per rank and category");
    let total: usize = counts.iter().map(|&count| count as usize).sum();
    assert_eq!(total, received.len(), "the counts sum up to the number of ids");
    let mut lookups = Lookups::new(received, inverse);
    let mut segments: Vec<Vec<_>> = (0..categories).map(|_| Vec::new()).collect();
    for (number, &count) in counts.iter().enumerate() {
        segments[number % categories].push(lookups.take(count as usize));
    }
    unique_by_category(segments, &vec![None; categories], unique, unique_counts, spread)
}

/// Ids and their inverse, taken from the front together.
struct Lookups<'a> {
    ids: &'a [u64],
    inverse: &'a mut [u32],
}

impl<'a> Lookups<'a> {
    fn new(ids: &'a [u64], inverse: &'a mut [u32]) -> Self {
        assert_eq!(ids.len(), inverse.len(), "one inverse per id");
        assert!(ids.len() < 1 << 31, "positions are 32 bits");
        Self { ids, inverse }
    }

    fn take(&mut self, count: usize) -> (&'a [u64], &'a mut [u32]) {
        let ids = self.ids.split_off(..count).expect("offsets rise");
        (ids, self.inverse.split_off_mut(..count).expect("as long as ids"))
    }
}

/// Both halves of the work: categories by themselves, then the places of each behind those before it.
fn unique_by_category(
    segments: Vec<Vec<(&[u64], &mut [u32])>>,
    paddings: &[Option<u64>],
    unique: &mut [u64],
    counts: &mut [u32],
    spread: impl Fn(usize, &CategoryWork<'_>),
) -> usize {
    let lengths: Vec<usize> =
        segments.iter().map(|parts| parts.iter().map(|(ids, _)| ids.len()).sum()).collect();
    let mut rest = &mut *unique;
    let mut categories = Vec::with_capacity(counts.len());
    for (((segments, &padding), &length), count) in
        segments.into_iter().zip(paddings).zip(&lengths).zip(&mut *counts)
    {
        let unique = rest.split_off_mut(..length).expect("room for every id");
        // A category has one taker, so nobody ever waits for its lock.
        categories.push(Mutex::new(CategoryIds { segments, padding, unique, count }));
    }
    assert!(rest.is_empty(), "as much room as there are ids");
    spread(categories.len(), &|number, scratch| lock(&categories[number]).find(scratch));
    let bases: Vec<u32> = categories
        .iter()
        .scan(0, |base, category| {
            let own = *base;
            *base += *lock(category).count;
            Some(own)
        })
        .collect();
    spread(categories.len(), &|number, _| {
        if bases[number] > 0 {
            lock(&categories[number]).shift(bases[number]);
        }
    });
    drop(categories);
    let (mut begin, mut end) = (0, 0);
    for (length, &count) in lengths.into_iter().zip(&*counts) {
        unique.copy_within(begin..begin + count as usize, end);
        begin += length;
        end += count as usize;
    }
    end
}

fn lock<'a, 'b>(category: &'a Mutex<CategoryIds<'b>>) -> MutexGuard<'a, CategoryIds<'b>> {
    category.lock().unwrap_or_else(PoisonError::into_inner)
}
