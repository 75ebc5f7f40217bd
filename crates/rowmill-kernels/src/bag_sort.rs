//! Bag sort: order the ids of bags by the ranks that pool them.

use crate::{Owner, RankScratch, SKIP};

/// Where the ids of one feature are pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortedFeature {
    /// Category of its table.
    pub category: u64,
    /// The rank that pools all its ids; `None`: each id is pooled by the owner of its row.
    pub whole: Option<u32>,
    /// The id that adds nothing to a bag and is not sent.
    pub padding: Option<u64>,
}

/// Sort the ids of bags by the rank that pools them, keeping their order within a rank. Ids are not
/// deduplicated. Returns their number without padding.
///
/// There are `F` features with `B` bags each. Bag `k = f * B + b` of feature `f` has the ids
/// `offsets[k]..offsets[k + 1]`. `sorted[positions[i]]` becomes `ids[i]`; the position of padding is
/// [`SKIP`]. `lengths[r * F * B + k]` becomes the number of ids of the bag that rank `r` pools.
///
/// # Panics
/// If lengths do not agree, offsets decrease, or a feature names a rank that does not exist.
#[allow(clippy::too_many_arguments)]
pub fn bag_sort(
    ids: &[u64],
    offsets: &[i64],
    features: &[SortedFeature],
    ranks: u32,
    scratch: &mut RankScratch,
    sorted: &mut [u64],
    positions: &mut [u32],
    lengths: &mut [u32],
) -> usize {
    let bags_all = offsets.len().saturating_sub(1);
    assert_eq!(bags_all % features.len().max(1), 0, "every feature must have the same number of bags");
    assert!(offsets.is_sorted(), "offsets must not decrease");
    assert_eq!(
        (offsets.first(), offsets.last()),
        (Some(&0), Some(&(ids.len() as i64))),
        "offsets must run from 0 to the number of ids"
    );
    assert_eq!((sorted.len(), positions.len()), (ids.len(), ids.len()), "one entry per id");
    assert_eq!(Some(lengths.len()), bags_all.checked_mul(ranks as usize), "one length per rank and bag");
    let bags = bags_all / features.len().max(1);
    let RankScratch { owners, next } = scratch;
    owners.clear();
    owners.reserve(ids.len());
    lengths.fill(0);
    for (number, feature) in features.iter().enumerate() {
        let ends = &offsets[number * bags..=(number + 1) * bags];
        let ids = &ids[ends[0] as usize..ends[bags] as usize];
        let first = owners.len();
        if let Some(rank) = feature.whole {
            assert!(rank < ranks, "rank {rank} of {ranks} pools a feature");
            owners.resize(first + ids.len(), rank);
        } else {
            let owner = Owner::new(feature.category, ranks);
            owners.extend(ids.iter().map(|&id| owner.of(id)));
        }
        if let Some(padding) = feature.padding {
            for (owner, &id) in owners[first..].iter_mut().zip(ids) {
                *owner = if id == padding { SKIP } else { *owner };
            }
        }
        for (bag, end) in ends.windows(2).enumerate() {
            for &owner in owners[end[0] as usize..end[1] as usize].iter().filter(|&&owner| owner != SKIP) {
                lengths[owner as usize * bags_all + number * bags + bag] += 1;
            }
        }
    }
    next.clear();
    let mut place = 0;
    next.extend((0..ranks as usize).map(|rank| {
        let begin = place;
        place += lengths[rank * bags_all..(rank + 1) * bags_all].iter().sum::<u32>();
        begin
    }));
    for ((&id, &owner), position) in ids.iter().zip(&*owners).zip(positions) {
        *position = SKIP;
        if owner != SKIP {
            let at = &mut next[owner as usize];
            *position = *at;
            sorted[*at as usize] = id;
            *at += 1;
        }
    }
    place as usize
}

#[cfg(test)]
mod tests {
    use super::{SortedFeature, bag_sort};
    use crate::{Owner, RankScratch, SKIP};

    #[test]
    fn bags_keep_their_order_at_every_rank() {
        // Two features with three bags each: one spread by hash with padding 9, one whole on rank 2.
        let ids = [5, 9, 7, 5, 1 << 63, 3, 9, 4, 4, 9];
        let offsets = [0, 3, 3, 5, 6, 8, 10];
        let spread = SortedFeature { category: 11, whole: None, padding: Some(9) };
        let whole = SortedFeature { category: 12, whole: Some(2), padding: None };
        for ranks in [3, 5] {
            let (mut sorted, mut positions) = (vec![77; ids.len()], vec![66; ids.len()]);
            let mut lengths = vec![55; ranks as usize * 6];
            let found = bag_sort(
                &ids,
                &offsets,
                &[spread, whole],
                ranks,
                &mut RankScratch::default(),
                &mut sorted,
                &mut positions,
                &mut lengths,
            );
            assert_eq!(found, 9, "one id is padding of its feature");
            let owner = Owner::new(11, ranks);
            let (mut wanted, mut wanted_lengths) = (Vec::new(), vec![0; lengths.len()]);
            for rank in 0..ranks {
                for (bag, ends) in offsets.windows(2).enumerate() {
                    for at in ends[0] as usize..ends[1] as usize {
                        let spread = bag < 3 && ids[at] != 9 && owner.of(ids[at]) == rank;
                        if spread || (bag >= 3 && rank == 2) {
                            assert_eq!(positions[at] as usize, wanted.len());
                            wanted.push(ids[at]);
                            wanted_lengths[rank as usize * 6 + bag] += 1;
                        }
                    }
                }
            }
            assert_eq!((&sorted[..found], lengths), (&wanted[..], wanted_lengths));
            assert_eq!(positions[1], SKIP);
        }
    }

    #[test]
    fn nothing_is_sorted_to_nothing() {
        let (mut sorted, mut positions, mut lengths) = ([], [], []);
        let scratch = &mut RankScratch::default();
        assert_eq!(bag_sort(&[], &[0], &[], 4, scratch, &mut sorted, &mut positions, &mut lengths), 0);
    }
}
