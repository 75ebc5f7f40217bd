//! Compares the kernels of the fused exchange with maps, separately and together on simulated ranks.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use rowmill_kernels::{
    CategoryWork, Owner, RankScratch, SKIP, UniqueScratch, combine, owner_unique, rank_sort, segment_unique,
    segment_unique_by_category,
};

/// The request of one rank: ids by category.
type Asked = Vec<Vec<u64>>;

/// Buffers shared by all calls, as in training: nothing may leak into the next call.
#[derive(Default)]
struct Scratch {
    unique: RefCell<UniqueScratch>,
    rank: RankScratch,
}

impl Scratch {
    /// Run the categories one after the other.
    fn in_turn(&self) -> impl Fn(usize, &CategoryWork<'_>) {
        |parts, work| (0..parts).for_each(|part| work(part, &mut self.unique.borrow_mut()))
    }
}

/// Run the categories in reverse order on three threads.
fn on_threads(parts: usize, work: &CategoryWork<'_>) {
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let mut scratch = UniqueScratch::default();
                (0..parts).rev().filter(|part| part % 3 == thread).for_each(|part| work(part, &mut scratch));
            });
        }
    });
}

/// One rank's part of an exchange, up to the ids that it sends.
struct Sent {
    unique: Vec<u64>,
    unique_counts: Vec<u32>,
    inverse: Vec<u32>,
    sorted: Vec<u64>,
    positions: Vec<u32>,
    counts: Vec<u32>,
}

fn send(
    asked: &Asked,
    paddings: &[Option<u64>],
    categories: &[u64],
    ranks: u32,
    scratch: &mut Scratch,
) -> Sent {
    let ids = asked.concat();
    let mut offsets = vec![0];
    offsets.extend(asked.iter().scan(0, |end, ids| {
        *end += ids.len();
        Some(*end)
    }));
    let (mut unique, mut unique_counts) = (vec![77; ids.len()], vec![99; asked.len()]);
    let mut inverse = vec![88; ids.len()];
    let found = segment_unique_by_category(
        &ids,
        &offsets,
        paddings,
        &mut unique,
        &mut unique_counts,
        &mut inverse,
        1,
        scratch.in_turn(),
    );
    unique.truncate(found);
    let (mut also, mut also_counts) = (vec![66; ids.len()], vec![11; asked.len()]);
    let mut also_inverse = vec![22; ids.len()];
    let also_found = segment_unique_by_category(
        &ids,
        &offsets,
        paddings,
        &mut also,
        &mut also_counts,
        &mut also_inverse,
        4,
        on_threads,
    );
    also.truncate(also_found);
    assert_eq!((&unique, &unique_counts, &inverse), (&also, &also_counts, &also_inverse));
    let (mut sorted, mut positions) = (vec![0; unique.len()], vec![0; unique.len()]);
    let mut counts = vec![55; ranks as usize * categories.len()];
    rank_sort(
        &unique,
        &unique_counts,
        categories,
        ranks,
        &mut scratch.rank,
        &mut sorted,
        &mut positions,
        &mut counts,
    );
    Sent { unique, unique_counts, inverse, sorted, positions, counts }
}

fn check_sent(sent: &Sent, asked: &Asked, paddings: &[Option<u64>], categories: &[u64], ranks: u32) {
    // Each category gives what it gives alone.
    let (mut base, mut lookups) = (0, 0);
    for ((ids, &padding), &count) in asked.iter().zip(paddings).zip(&sent.unique_counts) {
        let (mut unique, mut inverse) = (Vec::new(), vec![0; ids.len()]);
        segment_unique(ids, padding, &mut UniqueScratch::default(), &mut unique, &mut inverse);
        assert_eq!(sent.unique[base..base + count as usize], unique);
        let shifted = inverse.iter().map(|&at| if at == SKIP { SKIP } else { at + base as u32 });
        assert!(sent.inverse[lookups..lookups + ids.len()].iter().copied().eq(shifted));
        base += count as usize;
        lookups += ids.len();
    }
    assert_eq!(base, sent.unique.len());
    // A stable sort by owner.
    let mut wanted: Vec<(u32, usize, u32)> = Vec::new();
    let mut number = 0;
    for (category, &count) in sent.unique_counts.iter().enumerate() {
        for _ in 0..count {
            let owner = Owner::new(categories[category], ranks).of(sent.unique[number as usize]);
            assert!(owner < ranks);
            wanted.push((owner, category, number));
            number += 1;
        }
    }
    let mut counts = vec![0; sent.counts.len()];
    for &(owner, category, _) in &wanted {
        counts[owner as usize * categories.len() + category] += 1;
    }
    assert_eq!(sent.counts, counts);
    wanted.sort_by_key(|&(owner, ..)| owner);
    for (place, &(.., number)) in wanted.iter().enumerate() {
        assert_eq!(sent.positions[number as usize], place as u32);
        assert_eq!(sent.sorted[place], sent.unique[number as usize]);
    }
}

/// Every lookup of every rank gets the row of its category and id. The owner sees each row once, however many
/// ranks request it.
fn exchange(asked: &[Asked], paddings: &[Option<u64>], categories: &[u64]) {
    let ranks = asked.len() as u32;
    let mut scratch = Scratch::default();
    let sent: Vec<Sent> = asked
        .iter()
        .map(|asked| {
            let sent = send(asked, paddings, categories, ranks, &mut scratch);
            check_sent(&sent, asked, paddings, categories, ranks);
            sent
        })
        .collect();
    let width = categories.len();
    let mut seen: BTreeMap<(usize, u64), u32> = BTreeMap::new();
    // Rows returned to every rank, in the order of its requests: the category and id that each row was looked
    // up by.
    let mut back: Vec<Vec<(usize, u64)>> = sent.iter().map(|_| Vec::new()).collect();
    for owner in 0..ranks as usize {
        let (mut received, mut counts) = (Vec::new(), Vec::new());
        for sent in &sent {
            let to = |rank: usize| sent.counts[..rank * width].iter().sum::<u32>() as usize;
            received.extend(&sent.sorted[to(owner)..to(owner + 1)]);
            counts.extend(&sent.counts[owner * width..(owner + 1) * width]);
        }
        let (mut unique, mut unique_counts) = (vec![66; received.len()], vec![0; width]);
        let mut inverse = vec![0; received.len()];
        let in_turn = scratch.in_turn();
        let found =
            owner_unique(&received, &counts, &mut unique, &mut unique_counts, &mut inverse, 1, in_turn);
        unique.truncate(found);
        let (mut also, mut also_counts) = (vec![33; received.len()], vec![7; width]);
        let mut also_inverse = vec![5; received.len()];
        let also_found =
            owner_unique(&received, &counts, &mut also, &mut also_counts, &mut also_inverse, 3, on_threads);
        also.truncate(also_found);
        assert_eq!((&unique, &unique_counts, &inverse), (&also, &also_counts, &also_inverse));
        let mut rows: Vec<(usize, u64)> = Vec::new();
        for (category, &count) in unique_counts.iter().enumerate() {
            let ids = &unique[rows.len()..rows.len() + count as usize];
            rows.extend(ids.iter().map(|&id| (category, id)));
        }
        assert_eq!(rows.len(), unique.len());
        for &row in &rows {
            *seen.entry(row).or_default() += 1;
        }
        let mut inverse = inverse.iter();
        for (back, counts) in back.iter_mut().zip(counts.chunks(width.max(1))) {
            let ids = counts.iter().sum::<u32>() as usize;
            back.extend(inverse.by_ref().take(ids).map(|&unique| rows[unique as usize]));
        }
    }
    assert!(seen.values().all(|&times| times == 1), "two owners, or a row twice: {seen:?}");
    for ((sent, asked), back) in sent.iter().zip(asked).zip(&back) {
        let mut combined = vec![0; sent.inverse.len()];
        combine(&sent.inverse, &sent.positions, &mut combined);
        let mut lookups = combined.iter();
        for (category, ids) in asked.iter().enumerate() {
            for (&id, &at) in ids.iter().zip(lookups.by_ref()) {
                if paddings[category] == Some(id) {
                    assert_eq!(at, SKIP);
                } else {
                    assert_eq!(back[at as usize], (category, id));
                }
            }
        }
    }
}

fn ids() -> impl Strategy<Value = Vec<u64>> {
    let id = prop_oneof![
        4 => 0_u64..30,
        1 => any::<u64>(),
        1 => prop::sample::select(vec![0, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, u64::MAX]),
    ];
    prop::collection::vec(id, 0..60)
}

proptest! {
    #[test]
    fn every_lookup_gets_its_row(
        (asked, paddings) in (1_usize..5, 0_usize..6).prop_flat_map(|(ranks, categories)| (
            prop::collection::vec(prop::collection::vec(ids(), categories), ranks),
            prop::collection::vec(prop_oneof![Just(None), Just(Some(3)), Just(Some(u64::MAX))], categories),
        )),
    ) {
        let categories: Vec<u64> = (0..paddings.len() as u64).map(|category| category * 3 + 7).collect();
        exchange(&asked, &paddings, &categories);
    }
}

#[test]
fn all_equal_ids_are_one_row_of_each_category() {
    exchange(&vec![vec![vec![5; 70_000], vec![5; 3], Vec::new()]; 3], &[None; 3], &[1, 2, 3]);
}

#[test]
fn ranks_without_ids_and_a_single_rank_work() {
    exchange(&[vec![Vec::new(), Vec::new()], vec![vec![1, 2, 1], vec![2]]], &[None; 2], &[0, 1]);
    exchange(&[vec![vec![4, 4, u64::MAX]]], &[Some(4)], &[9]);
    exchange(&[vec![], vec![]], &[], &[]);
}

#[test]
fn small_ids_of_all_categories_are_spread_over_the_ranks() {
    for ranks in [2_u32, 3, 8] {
        let mut owned = vec![0_u32; ranks as usize];
        for category in 0..200 {
            let owner = Owner::new(category, ranks);
            (0..10).for_each(|id| owned[owner.of(id) as usize] += 1);
        }
        let even = 2000 / ranks;
        assert!(owned.iter().all(|&rows| rows.abs_diff(even) < even / 4), "{owned:?}");
    }
}
