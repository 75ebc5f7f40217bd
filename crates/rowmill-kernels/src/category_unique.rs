//! Unique by category: the distinct ids of every category of a fused group, each category for itself, so that several
//! threads can share a batch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::segment_unique::distinct;
use crate::{SKIP, UniqueScratch};

/// What is to be done for each run of categories, given its number and buffers that no other thread uses meanwhile.
pub type CategoryWork<'a> = dyn Fn(usize, &mut UniqueScratch) + Sync + 'a;

/// Ids of one category, each with where its position goes.
type Segments<'a> = Vec<(&'a [u64], &'a mut [u32])>;

/// The lookups of one category.
struct CategoryIds<'a> {
    segments: Segments<'a>,
    padding: Option<u64>,
    count: &'a mut u32,
}

impl CategoryIds<'_> {
    fn len(&self) -> usize {
        self.segments.iter().map(|(ids, _)| ids.len()).sum()
    }

    /// Positions count from the first id of `unique`, which has room for all ids; returns how many are distinct.
    fn find(&mut self, scratch: &mut UniqueScratch, unique: &mut [u64]) -> usize {
        assert!(self.len() <= unique.len(), "room for every id");
        let total = self.len();
        let segments = self.segments.iter_mut().map(|(ids, inverse)| (*ids, &mut **inverse));
        // SAFETY: there is room for so many.
        let count = unsafe { distinct(total, segments, self.padding, scratch, unique.as_mut_ptr()) };
        *self.count = count as u32;
        count
    }

    fn shift(&mut self, base: usize) {
        for inverse in self.segments.iter_mut().flat_map(|(_, inverse)| inverse.iter_mut()) {
            *inverse = if *inverse == SKIP { SKIP } else { *inverse + base as u32 };
        }
    }
}

/// Categories that follow one another, which one thread takes.
struct CategoryRun<'a> {
    categories: Vec<CategoryIds<'a>>,
    /// Room for all ids.
    unique: &'a mut [u64],
    /// How many are distinct.
    found: usize,
}

impl CategoryRun<'_> {
    /// Positions count from the first id of the run.
    fn find(&mut self, scratch: &mut UniqueScratch) {
        for category in &mut self.categories {
            let count = category.find(scratch, &mut self.unique[self.found..]);
            if self.found > 0 {
                category.shift(self.found);
            }
            self.found += count;
        }
    }

    fn shift(&mut self, base: usize) {
        self.categories.iter_mut().for_each(|category| category.shift(base));
    }
}

/// [`segment_unique`](crate::segment_unique()) of every category of a fused group in one pass: the ids of category `c` are
/// `ids[offsets[c]..offsets[c + 1]]`, the distinct ones come to the front of `unique` category by category, `counts[c]` of
/// them, and `inverse` counts through all categories (`FusedRec`, Section 3: equal ids of different categories stay apart).
/// Returns how many are distinct.
///
/// Categories are cut into `runs` of about as many ids, and `spread(n, work)` calls `work(run, scratch)` once for each of `n` runs,
/// on threads of its choice. Neither changes a result.
///
/// # Panics
/// If `unique` and `inverse` are not as long as `ids`, `paddings`, `counts` and the categories differ in number, offsets do
/// not rise from 0 to the number of ids, or there are 2^31 ids or more.
#[allow(clippy::too_many_arguments, reason = "one argument per array")]
pub fn segment_unique_by_category(
    ids: &[u64],
    offsets: &[usize],
    paddings: &[Option<u64>],
    unique: &mut [u64],
    counts: &mut [u32],
    inverse: &mut [u32],
    runs: usize,
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
    unique_by_category(segments, paddings, unique, counts, runs, spread)
}

/// Owner unique: the distinct rows that several ranks ask one rank for (`FusedRec`, Section 3: deferred to the owner, who
/// knows the category of every id and loses none).
///
/// The distinct ids of every category come to the front of `unique`, category by category, `unique_counts[c]` of them in
/// order of first occurrence, and the position of every received id among them to `inverse`. Returns how many are distinct.
///
/// `received` holds for every rank, one after the other, its ids of every category: `counts[r * C + c]` of them. `runs`
/// and `spread` are those of [`segment_unique_by_category`].
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
    runs: usize,
    spread: impl Fn(usize, &CategoryWork<'_>),
) -> usize {
    let categories = unique_counts.len();
    assert!(counts.len().is_multiple_of(categories.max(1)), "a count per rank and category");
    let total: usize = counts.iter().map(|&count| count as usize).sum();
    assert_eq!(total, received.len(), "the counts sum up to the number of ids");
    let mut lookups = Lookups::new(received, inverse);
    let mut segments: Vec<Segments<'_>> = (0..categories).map(|_| Vec::new()).collect();
    for (number, &count) in counts.iter().enumerate() {
        segments[number % categories].push(lookups.take(count as usize));
    }
    unique_by_category(segments, &vec![None; categories], unique, unique_counts, runs, spread)
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

/// Both halves of the work: runs by themselves, then the places of each behind those before it.
fn unique_by_category(
    segments: Vec<Segments<'_>>,
    paddings: &[Option<u64>],
    unique: &mut [u64],
    counts: &mut [u32],
    runs: usize,
    spread: impl Fn(usize, &CategoryWork<'_>),
) -> usize {
    let of_run = unique.len().div_ceil(runs.max(1)).max(1);
    let mut categories = segments
        .into_iter()
        .zip(paddings)
        .zip(counts)
        .map(|((segments, &padding), count)| CategoryIds { segments, padding, count })
        .peekable();
    let mut rest = &mut *unique;
    // A run has one taker, so nobody ever waits for its lock.
    let mut runs: Vec<Mutex<CategoryRun<'_>>> = Vec::new();
    while categories.peek().is_some() {
        let (mut own, mut ids) = (Vec::new(), 0);
        while let Some(category) = categories.next_if(|_| ids < of_run) {
            ids += category.len();
            own.push(category);
        }
        let unique = rest.split_off_mut(..ids).expect("room for every id");
        runs.push(Mutex::new(CategoryRun { categories: own, unique, found: 0 }));
    }
    assert!(rest.is_empty(), "as much room as there are ids");
    spread(runs.len(), &|run, scratch| lock(&runs[run]).find(scratch));
    let mut total = 0;
    let mut bases = Vec::with_capacity(runs.len());
    for run in &runs {
        bases.push(total);
        total += lock(run).found;
    }
    if runs.len() > 1 {
        spread(runs.len(), &|run, _| {
            if bases[run] > 0 {
                lock(&runs[run]).shift(bases[run]);
            }
        });
    }
    let found: Vec<(usize, usize)> =
        runs.into_iter().map(into_inner).map(|run| (run.unique.len(), run.found)).collect();
    let mut begin = 0;
    for (&(room, found), end) in found.iter().zip(bases) {
        unique.copy_within(begin..begin + found, end);
        begin += room;
    }
    total
}

fn lock<'a, 'b>(run: &'a Mutex<CategoryRun<'b>>) -> MutexGuard<'a, CategoryRun<'b>> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}

fn into_inner(run: Mutex<CategoryRun<'_>>) -> CategoryRun<'_> {
    run.into_inner().unwrap_or_else(PoisonError::into_inner)
}
