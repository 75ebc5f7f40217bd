//! Rank sort: distinct rows in the order of the ranks that own them (`FusedRec`, Section 3).

use rowmill_splitmix::{absorb, mix};

use crate::SKIP;

/// Of the owners' hash: another one than the shards' within a rank, so that what falls to a rank is spread over all of
/// its shards.
const OWNER_SEED: u64 = 0x6f77_6e65_7221_0001;

/// The owner of rows of one category.
///
/// The category is mixed in: by the id alone the small, hot ids of all categories would fall to the same ranks.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    state: u64,
    ranks: u32,
}

impl Owner {
    /// Of a category among `ranks`.
    ///
    /// # Panics
    /// Without ranks.
    pub fn new(category: u64, ranks: u32) -> Self {
        assert!(ranks > 0, "a row has an owner");
        Self { state: absorb(OWNER_SEED, category), ranks }
    }

    /// The rank that owns an id.
    #[inline(always)]
    pub fn of(&self, id: u64) -> u32 {
        (((mix(self.state ^ id) >> 32) * u64::from(self.ranks)) >> 32) as u32
    }
}

/// Buffers of [`rank_sort`], kept from call to call.
#[derive(Clone, Debug, Default)]
pub struct RankScratch {
    owners: Vec<u32>,
    next: Vec<u32>,
}

/// Sort distinct rows by owner, those of one owner by category, in the order they have.
///
/// `unique` holds the ids category by category, `unique_counts[c]` of `categories[c]`. `sorted[positions[u]]` becomes
/// `unique[u]`, and `counts[r * C + c]` the number of ids that rank `r` owns of category `c` out of `C`.
///
/// # Panics
/// If lengths do not agree: `sorted` and `positions` are as long as `unique`, `counts` as ranks times categories, and the
/// numbers of the categories sum up to that of the ids.
#[allow(clippy::too_many_arguments)]
pub fn rank_sort(
    unique: &[u64],
    unique_counts: &[u32],
    categories: &[u64],
    ranks: u32,
    scratch: &mut RankScratch,
    sorted: &mut [u64],
    positions: &mut [u32],
    counts: &mut [u32],
) {
    assert_eq!((sorted.len(), positions.len()), (unique.len(), unique.len()), "one place per id");
    assert_eq!(unique_counts.len(), categories.len(), "a number of ids per category");
    assert_eq!(
        Some(counts.len()),
        (ranks as usize).checked_mul(categories.len()),
        "a count per rank and category"
    );
    let total: usize = unique_counts.iter().map(|&count| count as usize).sum();
    assert_eq!(total, unique.len(), "the numbers of the categories sum up to that of the ids");
    let owners = &mut scratch.owners;
    owners.clear();
    owners.reserve(unique.len());
    counts.fill(0);
    let mut first = 0;
    for (category, (&id, &count)) in categories.iter().zip(unique_counts).enumerate() {
        let owner = Owner::new(id, ranks);
        let ids = &unique[first..first + count as usize];
        // Two loops: the first is plain arithmetic, which compilers make vectors of.
        owners.extend(ids.iter().map(|&id| owner.of(id)));
        for &owner in &owners[first..] {
            counts[owner as usize * categories.len() + category] += 1;
        }
        first += count as usize;
    }
    let next = &mut scratch.next;
    next.clear();
    let mut place = 0;
    next.extend(counts.chunks(categories.len().max(1)).map(|of_rank| {
        let begin = place;
        place += of_rank.iter().sum::<u32>();
        begin
    }));
    for ((&id, &owner), position) in unique.iter().zip(&*owners).zip(positions) {
        let place = &mut next[owner as usize];
        *position = *place;
        sorted[*place as usize] = id;
        *place += 1;
    }
}

/// Where the row of each lookup comes back: `combined[i]` is `positions[inverse[i]]`, so that recovery is one gather.
/// Padding stays [`SKIP`].
///
/// # Panics
/// If `combined` and `inverse` differ in length, or an inverse is beyond `positions`.
pub fn combine(inverse: &[u32], positions: &[u32], combined: &mut [u32]) {
    assert_eq!(inverse.len(), combined.len(), "one index per lookup");
    for (&unique, combined) in inverse.iter().zip(combined) {
        *combined = if unique == SKIP { SKIP } else { positions[unique as usize] };
    }
}
