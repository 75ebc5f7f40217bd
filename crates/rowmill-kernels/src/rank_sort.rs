//! Rank sort: order distinct rows by the ranks that own them (`FusedRec`, Section 3).

use rowmill_splitmix::{absorb, mix};

use crate::SKIP;

/// Seed of the hash that selects owners. It differs from that of the hash that selects shards within a rank,
/// so that the rows of a rank are spread over all its shards.
const OWNER_SEED: u64 = 0x6f77_6e65_7221_0001;

/// Selects the owner rank of the rows of one category.
///
/// The category is part of the hash: otherwise, the small, hot ids of all categories would have the same
/// owners.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    state: u64,
    ranks: u32,
}

impl Owner {
    /// The owners of a category's rows among `ranks` ranks.
    ///
    /// # Panics
    /// If `ranks` is 0.
    pub fn new(category: u64, ranks: u32) -> Self {
        assert!(ranks > 0, "ranks must be at least 1");
        Self { state: absorb(OWNER_SEED, category), ranks }
    }

    /// The rank that owns an id.
    #[inline(always)]
    pub fn of(&self, id: u64) -> u32 {
        (((mix(self.state ^ id) >> 32) * u64::from(self.ranks)) >> 32) as u32
    }
}

/// Buffers of [`rank_sort`] and [`crate::bag_sort`], kept from call to call.
#[derive(Clone, Debug, Default)]
pub struct RankScratch {
    pub(crate) owners: Vec<u32>,
    pub(crate) next: Vec<u32>,
}

/// Sort distinct rows by owner, then by category, keeping their order within one owner and category.
///
/// `unique` holds the ids category by category, `unique_counts[c]` of category `categories[c]`.
/// `sorted[positions[u]]` becomes `unique[u]`. `counts[r * C + c]` becomes the number of ids of category `c`
/// (of `C`) that rank `r` owns.
///
/// # Panics
/// If `sorted` and `positions` are not as long as `unique`, `counts` is not as long as ranks times
/// categories, or `unique_counts` does not add up to the number of ids.
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
    assert_eq!(
        (sorted.len(), positions.len()),
        (unique.len(), unique.len()),
        "sorted and positions must have one entry per id"
    );
    assert_eq!(unique_counts.len(), categories.len(), "unique_counts must have one entry per category");
    assert_eq!(
        Some(counts.len()),
        (ranks as usize).checked_mul(categories.len()),
        "counts must have one entry per rank and category"
    );
    let total: usize = unique_counts.iter().map(|&count| count as usize).sum();
    assert_eq!(total, unique.len(), "unique_counts must add up to the number of ids");
    let owners = &mut scratch.owners;
    owners.clear();
    owners.reserve(unique.len());
    counts.fill(0);
    let mut first = 0;
    for (category, (&id, &count)) in categories.iter().zip(unique_counts).enumerate() {
        let owner = Owner::new(id, ranks);
        let ids = &unique[first..first + count as usize];
        // Two loops, because compilers can vectorise the first one, which is plain arithmetic.
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

/// Compose both indices, so that recovery is one gather: `combined[i]` becomes `positions[inverse[i]]`.
/// Padding stays [`SKIP`].
///
/// # Panics
/// If `combined` and `inverse` differ in length, or an index in `inverse` is outside `positions`.
pub fn combine(inverse: &[u32], positions: &[u32], combined: &mut [u32]) {
    assert_eq!(inverse.len(), combined.len(), "combined must have one entry per lookup");
    for (&unique, combined) in inverse.iter().zip(combined) {
        *combined = if unique == SKIP { SKIP } else { positions[unique as usize] };
    }
}
