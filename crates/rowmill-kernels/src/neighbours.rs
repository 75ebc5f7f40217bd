//! Neighbour sampling (Hamilton et al. 2017, arXiv 1706.02216, algorithm 2): some neighbours of every seed, some of
//! theirs, and so on, as small graphs that a model computes layer by layer.
//!
//! Which neighbours a node gets follows from seed, batch, layer and node alone. So equal seeds give equal samples,
//! whatever else is sampled and by however many threads.

use rowmill_splitmix::{STEP, absorb, mix};

use crate::{Csr, GraphError, NodeNumber, UniqueScratch, segment_unique};

/// A sample has fewer nodes and neighbours than this: their places are numbered in 31 bits.
const NEIGHBOURS_MAX: usize = 1 << 31;
/// Up to so many places drawn of a list are looked through one by one; of more, a bit each says which are taken.
const LOOKED_THROUGH: usize = 32;

/// How many neighbours a layer takes of a node. Edges are drawn: a neighbour that is listed twice is two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// All there are.
    All,
    /// So many, each edge at most once: all there are if these are no more.
    Distinct(usize),
    /// So many, each drawn from all: none if there are none.
    Repeated(usize),
}

impl Draw {
    /// How many neighbours are taken of a list of `degree`.
    fn of(self, degree: usize) -> usize {
        match self {
            Self::All => degree,
            Self::Distinct(count) => count.min(degree),
            Self::Repeated(count) => {
                if degree == 0 {
                    0
                } else {
                    count
                }
            }
        }
    }

    /// As users give it: -1 for all.
    fn fanout(self) -> i64 {
        match self {
            Self::All => -1,
            Self::Distinct(count) | Self::Repeated(count) => count as i64,
        }
    }
}

/// What a stream of draws belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleKey {
    /// The seed of a run.
    pub seed: u64,
    /// The number of a batch.
    pub batch: u64,
}

/// A sample: nodes by their place, and the neighbours that each layer takes.
///
/// Layer 0 has the neighbours of the seeds, which are the first nodes. Layer `l` has those of the nodes that layers
/// below it name, and what it adds to them follows in order of first occurrence. So every layer reads a prefix of the
/// nodes and writes a shorter one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// All nodes, each once, the seeds first.
    pub nodes: Vec<u64>,
    /// One per draw, the seeds' first.
    pub layers: Vec<SampledLayer>,
}

/// The neighbours one layer takes: those of the node at place `p` are at `indices[indptr[p]..indptr[p + 1]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledLayer {
    /// One entry for each node that takes neighbours, and one more.
    pub indptr: Vec<i64>,
    /// Places of the neighbours.
    pub indices: Vec<i64>,
    /// So many nodes, the first ones, are named by this layer and those below it.
    pub sources: usize,
}

/// Sample neighbours of `seeds`, a layer for each of `draws`.
///
/// An edge from a node to itself is an edge like others; a node without neighbours gets an empty list.
///
/// # Errors
/// A seed that is no node or is given twice, or the first wrong entry of the graph that was met.
pub fn sample_neighbours<N: NodeNumber>(
    graph: &Csr<'_, N>,
    seeds: &[u64],
    draws: &[Draw],
    key: SampleKey,
) -> Result<Sample, GraphError> {
    let (mut unique, mut places) = (UniqueScratch::default(), vec![0; seeds.len()]);
    let mut nodes = Vec::new();
    segment_unique(seeds, None, &mut unique, &mut nodes, &mut places);
    check_seeds(seeds, &places, graph.nodes())?;
    let stream = absorb(absorb(0, key.seed), key.batch);
    let mut drawer = Drawer::default();
    let mut layers = Vec::with_capacity(draws.len());
    let mut named = Vec::new();
    let mut neighbours = 0_usize;
    for (layer, &draw) in draws.iter().enumerate() {
        // The nodes so far lead, so they keep their places when all are made distinct.
        named.clone_from(&nodes);
        let mut indptr = Vec::with_capacity(nodes.len() + 1);
        indptr.push(0);
        let lists: Vec<_> = nodes.iter().map(|&node| graph.list(node)).collect::<Result<_, _>>()?;
        // Before any of them takes memory: a fan-out with repetition may be any number.
        let drawn = lists.iter().fold(0_usize, |sum, &(_, degree)| sum.saturating_add(draw.of(degree)));
        neighbours = neighbours.saturating_add(drawn);
        if seeds.len().saturating_add(neighbours) >= NEIGHBOURS_MAX {
            return Err(GraphError::TooMany { seeds: seeds.len(), fanout: draw.fanout(), layer, neighbours });
        }
        named.reserve_exact(drawn);
        for (&node, (start, degree)) in nodes.iter().zip(lists) {
            let random = Random { state: absorb(absorb(stream, layer as u64), node), draws: 0 };
            drawer.draw(draw, degree, random, |place| {
                named.push(graph.neighbour(start + place)?);
                Ok(())
            })?;
            indptr.push((named.len() - nodes.len()) as i64);
        }
        places.resize(named.len(), 0);
        let lists = nodes.len();
        segment_unique(&named, None, &mut unique, &mut nodes, &mut places);
        let indices = places[lists..].iter().map(|&place| place.into()).collect();
        layers.push(SampledLayer { indptr, indices, sources: nodes.len() });
    }
    Ok(Sample { nodes, layers })
}

fn check_seeds(seeds: &[u64], places: &[u32], nodes: u64) -> Result<(), GraphError> {
    for (position, (&node, &place)) in seeds.iter().zip(places).enumerate() {
        if node >= nodes {
            return Err(GraphError::Seed { position, node: node.cast_signed(), nodes });
        }
        if place as usize != position {
            return Err(GraphError::SeedAgain { position, node });
        }
    }
    Ok(())
}

/// Numbers that follow from a state and how many were drawn before.
#[derive(Clone, Copy, Debug)]
struct Random {
    state: u64,
    draws: u64,
}

impl Random {
    /// A number below `end`, which is not 0; some are likelier than others by less than `end` in 2^64.
    #[inline(always)]
    fn below(&mut self, end: usize) -> usize {
        self.draws += 1;
        let word = mix(self.state.wrapping_add(self.draws.wrapping_mul(STEP)));
        ((u128::from(word) * end as u128) >> 64) as usize
    }
}

/// Draws places of lists.
#[derive(Debug, Default)]
struct Drawer {
    chosen: Vec<usize>,
    /// A bit for each place of the longest list so far; all clear between draws.
    taken: Vec<u64>,
}

impl Drawer {
    /// Call `take` with each place drawn of a list of `degree`.
    #[inline(always)]
    fn draw(
        &mut self,
        draw: Draw,
        degree: usize,
        mut random: Random,
        mut take: impl FnMut(usize) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        match draw {
            Draw::Repeated(_) if degree == 0 => Ok(()),
            Draw::Repeated(count) => (0..count).try_for_each(|_| take(random.below(degree))),
            Draw::Distinct(count) if count < degree => {
                self.choose(count, degree, random);
                self.chosen.iter().try_for_each(|&place| take(place))
            }
            Draw::All | Draw::Distinct(_) => (0..degree).try_for_each(take),
        }
    }

    /// Choose `count` distinct places of more, every such set equally likely (Bentley and Floyd 1987, "Programming
    /// pearls: a sample of brilliance").
    fn choose(&mut self, count: usize, degree: usize, mut random: Random) {
        self.chosen.clear();
        let marked = count > LOOKED_THROUGH;
        if marked && self.taken.len() < degree.div_ceil(64) {
            self.taken.resize(degree.div_ceil(64), 0);
        }
        for last in degree - count..degree {
            let drawn = random.below(last + 1);
            let again = if marked { self.is_taken(drawn) } else { self.chosen.contains(&drawn) };
            let place = if again { last } else { drawn };
            self.chosen.push(place);
            if marked {
                self.taken[place / 64] |= 1 << (place % 64);
            }
        }
        if marked {
            for &place in &self.chosen {
                self.taken[place / 64] = 0;
            }
        }
    }

    fn is_taken(&self, place: usize) -> bool {
        self.taken[place / 64] >> (place % 64) & 1 == 1
    }
}
