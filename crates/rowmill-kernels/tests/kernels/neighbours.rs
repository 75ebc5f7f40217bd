//! Checks neighbour samples list by list, and how often each edge is drawn.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use rowmill_kernels::{Csr, Draw, GraphError, Sample, SampleKey, sample_neighbours};

use crate::data::Random;

const KEY: SampleKey = SampleKey { seed: 5, batch: 7 };

/// Lists of neighbours, with loops, repeated edges and empty lists.
fn lists(nodes: usize, seed: u64) -> Vec<Vec<i64>> {
    let mut random = Random::new(seed);
    let degree = |random: &mut Random| match random.below(4) {
        0 => 0,
        1 => random.below(4),
        2 => random.below(30),
        _ => random.below(150),
    };
    (0..nodes).map(|_| (0..degree(&mut random)).map(|_| random.below(nodes) as i64).collect()).collect()
}

fn compressed(lists: &[Vec<i64>]) -> (Vec<i64>, Vec<i64>) {
    let mut indptr = vec![0];
    indptr.extend(lists.iter().scan(0, |end, list| {
        *end += list.len() as i64;
        Some(*end)
    }));
    (indptr, lists.concat())
}

fn draws() -> impl Strategy<Value = Draw> {
    prop_oneof![
        Just(Draw::All),
        (0_usize..80).prop_map(Draw::Distinct),
        (0_usize..80).prop_map(Draw::Repeated)
    ]
}

fn counted(items: impl IntoIterator<Item = i64>) -> HashMap<i64, usize> {
    let mut counts = HashMap::new();
    for item in items {
        *counts.entry(item).or_insert(0) += 1;
    }
    counts
}

/// Every list has what its draw allows, and nodes are numbered as documented.
fn check(lists: &[Vec<i64>], seeds: &[u64], draws: &[Draw], sample: &Sample) {
    assert_eq!(&sample.nodes[..seeds.len()], seeds);
    assert_eq!(sample.nodes.iter().collect::<HashSet<_>>().len(), sample.nodes.len());
    assert_eq!(sample.layers.len(), draws.len());
    let mut named = seeds.len();
    for (layer, draw) in sample.layers.iter().zip(draws) {
        assert_eq!(layer.indptr.len(), named + 1);
        assert_eq!((layer.indptr[0], layer.indptr[named]), (0, layer.indices.len() as i64));
        for place in 0..named {
            let range = layer.indptr[place] as usize..layer.indptr[place + 1] as usize;
            let places = &layer.indices[range];
            let drawn: Vec<i64> = places.iter().map(|&at| sample.nodes[at as usize] as i64).collect();
            let all = &lists[sample.nodes[place] as usize];
            match *draw {
                Draw::Distinct(count) if count < all.len() => {
                    assert_eq!(drawn.len(), count);
                    let there = counted(all.iter().copied());
                    assert!(counted(drawn).iter().all(|(node, &times)| times <= there[node]));
                }
                Draw::Repeated(count) => {
                    assert_eq!(drawn.len(), if all.is_empty() { 0 } else { count });
                    assert!(drawn.iter().all(|node| all.contains(node)));
                }
                Draw::All | Draw::Distinct(_) => assert_eq!(&drawn, all),
            }
        }
        // New nodes follow in order of first occurrence.
        for &place in &layer.indices {
            assert!(place as usize <= named);
            named += usize::from(place as usize == named);
        }
        assert_eq!(layer.sources, named);
    }
    assert_eq!(sample.nodes.len(), named);
}

proptest! {
    #[test]
    fn lists_follow_fanout_and_replacement(
        nodes in 1_usize..120,
        seed in any::<u64>(),
        share in 0_u64..4,
        draws in prop::collection::vec(draws(), 0..4),
    ) {
        let lists = lists(nodes, seed);
        let (indptr, indices) = compressed(&lists);
        let graph = Csr::new(&indptr, &indices).unwrap();
        graph.check().unwrap();
        let seeds: Vec<u64> = (0..nodes as u64).rev().filter(|node| node % (share + 1) == 0).collect();
        let sample = sample_neighbours(&graph, &seeds, &draws, KEY).unwrap();
        check(&lists, &seeds, &draws, &sample);
        let narrow: Vec<i32> = indices.iter().map(|&node| node as i32).collect();
        let graph = Csr::new(&indptr, &narrow).unwrap();
        prop_assert_eq!(sample_neighbours(&graph, &seeds, &draws, KEY).unwrap(), sample);
    }

    #[test]
    fn neighbours_of_a_node_do_not_depend_on_other_seeds(seed in any::<u64>(), batch in any::<u64>()) {
        let lists = lists(60, 3);
        let (indptr, indices) = compressed(&lists);
        let graph = Csr::new(&indptr, &indices).unwrap();
        let key = SampleKey { seed, batch };
        let drawn = |seeds: &[u64]| -> HashMap<u64, Vec<u64>> {
            let sample = sample_neighbours(&graph, seeds, &[Draw::Distinct(5)], key).unwrap();
            let layer = &sample.layers[0];
            let ends = layer.indptr.windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
            let named = |places: &[i64]| places.iter().map(|&place| sample.nodes[place as usize]).collect();
            seeds.iter().copied().zip(ends.map(|range| named(&layer.indices[range]))).collect()
        };
        let all: Vec<u64> = (0..60).collect();
        let whole = drawn(&all);
        for part in all.chunks(13) {
            for (node, neighbours) in drawn(part) {
                prop_assert_eq!(&neighbours, &whole[&node]);
            }
        }
    }
}

/// How often each position of a list of 40 is drawn, over 20,000 batches and over 20,000 seeds.
#[test]
fn every_edge_is_equally_likely() {
    let list: Vec<i64> = (1..=40).collect();
    let lists = [vec![list], vec![vec![]; 40]].concat();
    let (indptr, indices) = compressed(&lists);
    let graph = Csr::new(&indptr, &indices).unwrap();
    for draw in [Draw::Distinct(10), Draw::Distinct(36), Draw::Repeated(10)] {
        for key in [|n| SampleKey { seed: n, batch: 1 }, |n| SampleKey { seed: 1, batch: n }] {
            let mut counts = [0_i64; 40];
            let (mut drawn, mut samples) = (0, HashSet::new());
            for number in 0..20_000 {
                let sample = sample_neighbours(&graph, &[0], &[draw], key(number)).unwrap();
                for &place in &sample.layers[0].indices {
                    counts[sample.nodes[place as usize] as usize - 1] += 1;
                    drawn += 1;
                }
                samples.insert(sample.nodes);
            }
            // Six standard deviations of a count, whose variance is at most binomial.
            let expected = drawn / 40;
            let bound = 6.0 * (expected as f64).sqrt();
            assert!(
                counts.iter().all(|count| ((count - expected) as f64).abs() < bound),
                "{draw:?}: {counts:?}, expected {expected}"
            );
            assert!(samples.len() > 15_000, "{draw:?}: batches give equal samples: {}", samples.len());
        }
    }
}

#[test]
fn layers_and_nodes_draw_independently() {
    let lists = vec![(0..50).collect::<Vec<i64>>(); 50];
    let (indptr, indices) = compressed(&lists);
    let graph = Csr::new(&indptr, &indices).unwrap();
    let sample = sample_neighbours(&graph, &[0, 1], &[Draw::Distinct(8); 2], KEY).unwrap();
    let list = |layer: usize, place: usize| -> Vec<u64> {
        let layer = &sample.layers[layer];
        let range = layer.indptr[place] as usize..layer.indptr[place + 1] as usize;
        layer.indices[range].iter().map(|&at| sample.nodes[at as usize]).collect()
    };
    assert_ne!(list(0, 0), list(0, 1));
    assert_ne!(list(0, 0), list(1, 0));
}

#[test]
fn a_self_loop_is_an_edge_and_an_isolated_node_has_an_empty_list() {
    let (indptr, indices) = compressed(&[vec![0], vec![]]);
    let graph = Csr::new(&indptr, &indices).unwrap();
    let sample = sample_neighbours(&graph, &[1, 0], &[Draw::Distinct(3); 2], KEY).unwrap();
    assert_eq!(sample.nodes, [1, 0]);
    for layer in &sample.layers {
        assert_eq!((&layer.indptr[..], &layer.indices[..]), (&[0, 0, 1][..], &[1][..]));
    }
    let nothing = sample_neighbours(&graph, &[], &[Draw::All], KEY).unwrap();
    assert_eq!((nothing.nodes.len(), &nothing.layers[0].indptr[..]), (0, &[0][..]));
}

#[test]
fn errors_name_invalid_entries_of_a_graph() {
    let none: &[i64] = &[];
    assert_eq!(Csr::new(&[], none).unwrap_err(), GraphError::Empty);
    let ends = |first, last| GraphError::Ends { edges: 2, first, last };
    assert_eq!(Csr::new(&[1, 2], &[0_i64, 0]).unwrap_err(), ends(1, 2));
    assert_eq!(Csr::new(&[0, 3], &[0_i64, 0]).unwrap_err(), ends(0, 3));
    assert_eq!(Csr::new(&[0, -1], &[0_i64, 0]).unwrap_err(), ends(0, -1));

    let sample = |indptr: &[i64], indices: &[i64], seeds: &[u64]| {
        let graph = Csr::new(indptr, indices).unwrap();
        (graph.check(), sample_neighbours(&graph, seeds, &[Draw::Distinct(2)], KEY).map(|_| ()))
    };
    let order = |node, start, end| Err(GraphError::Order { node, start, end, edges: 3 });
    for (indptr, node, start, end) in
        [([0, 2, 1, 3], 1, 2, 1), ([0, 1, 4, 3], 1, 1, 4), ([0, 1, -2, 3], 1, 1, -2)]
    {
        let found = sample(&indptr, &[0, 1, 2], &[1]);
        assert_eq!(found, (order(node, start, end), order(node, start, end)));
    }
    for node in [3, -1] {
        let wrong = Err(GraphError::Neighbour { position: 1, node, nodes: 3 });
        let (checked, sampled) = sample(&[0, 2, 2, 3], &[0, node, 2], &[0]);
        assert_eq!((checked, sampled), (wrong.clone(), wrong));
        let (_, elsewhere) = sample(&[0, 2, 2, 3], &[0, node, 2], &[2]);
        assert_eq!(elsewhere, Ok(()));
    }
    let whole = [0, 1, 2, 3];
    let (_, seed) = sample(&whole, &[0, 1, 2], &[0, 3]);
    assert_eq!(seed, Err(GraphError::Seed { position: 1, node: 3, nodes: 3 }));
    let (_, seed) = sample(&whole, &[0, 1, 2], &[u64::MAX]);
    assert_eq!(seed, Err(GraphError::Seed { position: 0, node: -1, nodes: 3 }));
    let (_, again) = sample(&whole, &[0, 1, 2], &[0, 2, 0]);
    assert_eq!(again, Err(GraphError::SeedAgain { position: 2, node: 0 }));
}

/// With repetition, a user may give any fan-out, whatever the graph.
#[test]
fn a_sample_of_too_many_neighbours_is_refused_before_it_takes_memory() {
    let graph = Csr::new(&[0, 1, 2, 2], &[1_i64, 0]).unwrap();
    let sample = |seeds: &[u64], draws: &[Draw]| sample_neighbours(&graph, seeds, draws, KEY).map(drop);
    for count in [1 << 30, 1 << 40, i64::MAX as usize] {
        let error = sample(&[0, 1], &[Draw::Repeated(1), Draw::Repeated(count)]).unwrap_err();
        let neighbours = count.saturating_mul(2).saturating_add(2);
        let fanout = count as i64;
        assert_eq!(error, GraphError::TooMany { seeds: 2, fanout, layer: 1, neighbours });
        let text = error.to_string();
        assert!(text.contains("2 seeds") && text.contains(&format!("fan-out {fanout}")), "{text}");
    }
    assert_eq!(sample(&[2], &[Draw::Repeated(usize::MAX)]), Ok(()), "it has no neighbours");
    assert_eq!(sample(&[0], &[Draw::Distinct(usize::MAX)]), Ok(()), "there is one neighbour");
}
