//! Unique by category: the distinct ids of each category of a fused group. Categories are independent, so
//! several threads can share a batch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::segment_unique::distinct;
use crate::{SKIP, UniqueScratch};

/// Work on one run of categories, given the run's number and scratch buffers that no other thread uses
/// meanwhile.
pub type CategoryWork<'a> = dyn Fn(usize, &mut UniqueScratch) + Sync + 'a;

/// Segments of one category: ids, and the slice for their positions among the distinct ids.
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

    /// Write the distinct ids to `unique`, which has room for all ids, and count positions from its start.
    /// Returns the number of distinct ids.
    fn find(&mut self, scratch: &mut UniqueScratch, unique: &mut [u64]) -> usize {
        assert!(self.len() <= unique.len(), "room for every id");
        let total = self.len();
        let segments = self.segments.iter_mut().map(|(ids, inverse)| (*ids, &mut **inverse));
        // SAFETY: `unique` has room for all ids, as asserted above.
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

/// Consecutive categories that one thread processes.
struct CategoryRun<'a> {
    categories: Vec<CategoryIds<'a>>,
    /// Room for all ids of the run.
    unique: &'a mut [u64],
    /// Number of distinct ids found.
    found: usize,
}

impl CategoryRun<'_> {
    /// Find the distinct ids of the run. Positions count from the first id of the run.
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

/// [`segment_unique`](crate::segment_unique()) of every category of a fused group. The ids of category `c`
/// are `ids[offsets[c]..offsets[c + 1]]`. The distinct ids are written to the start of `unique`, category by
/// category, `counts[c]` of category `c`. `inverse` holds positions among all distinct ids. Equal ids of
/// different categories stay separate (`FusedRec`, Section 3). Returns the number of distinct ids.
///
/// Categories are divided into `runs` of about equal numbers of ids. `spread(n, work)` must call
/// `work(run, scratch)` once for each run in `[0, n)`, on any threads. Neither affects the results.
///
/// # Panics
/// If `unique` and `inverse` are not as long as `ids`, if `paddings` and `counts` do not have one entry per
/// category, if offsets do not ascend from 0 to the number of ids, or if there are 2^31 ids or more.
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
    assert_eq!(offsets.len(), counts.len() + 1, "offsets must have one entry more than there are categories");
    assert_eq!(paddings.len(), counts.len(), "paddings must have one entry per category");
    assert_eq!(
        (offsets[0], offsets[counts.len()]),
        (0, ids.len()),
        "offsets must run from 0 to the number of ids"
    );
    let mut lookups = Lookups::new(ids, inverse);
    let segments = offsets.windows(2).map(|ends| vec![lookups.take(ends[1] - ends[0])]).collect();
    unique_by_category(segments, paddings, unique, counts, runs, spread)
}

/// Owner unique: the distinct rows that several ranks request from their owner (`FusedRec`, Section 3). The
/// owner does this because it knows the category of every id, and so loses no id.
///
/// The distinct ids are written to the start of `unique`, category by category: `unique_counts[c]` ids of
/// category `c`, in order of first occurrence. `inverse` gets the position of every received id among them.
/// Returns the number of distinct ids.
///
/// `received` holds, rank by rank, each rank's ids of every category: `counts[r * C + c]` of them. For `runs`
/// and `spread` see [`segment_unique_by_category`].
///
/// # Panics
/// If `unique` and `inverse` are not as long as `received`, if the length of `counts` is not a multiple of
/// that of `unique_counts`, or if `counts` does not add up to the number of ids, which must be below 2^31.
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
    assert!(
        counts.len().is_multiple_of(categories.max(1)),
        "counts must have one entry per rank and category"
    );
    let total: usize = counts.iter().map(|&count| count as usize).sum();
    assert_eq!(total, received.len(), "counts must add up to the number of ids");
    let mut lookups = Lookups::new(received, inverse);
    let mut segments: Vec<Segments<'_>> = (0..categories).map(|_| Vec::new()).collect();
    for (number, &count) in counts.iter().enumerate() {
        segments[number % categories].push(lookups.take(count as usize));
    }
    unique_by_category(segments, &vec![None; categories], unique, unique_counts, runs, spread)
}

/// Ids and their inverse, both consumed from the front.
struct Lookups<'a> {
    ids: &'a [u64],
    inverse: &'a mut [u32],
}

impl<'a> Lookups<'a> {
    fn new(ids: &'a [u64], inverse: &'a mut [u32]) -> Self {
        assert_eq!(ids.len(), inverse.len(), "inverse must have one entry per id");
        assert!(ids.len() < 1 << 31, "there must be fewer than 2^31 ids");
        Self { ids, inverse }
    }

    fn take(&mut self, count: usize) -> (&'a [u64], &'a mut [u32]) {
        let ids = self.ids.split_off(..count).expect("offsets must ascend");
        (ids, self.inverse.split_off_mut(..count).expect("inverse is as long as ids"))
    }
}

/// Find the distinct ids of each run separately, then shift their positions and move them together.
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
    // Each run is processed by one thread at a time, so its lock never blocks.
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
