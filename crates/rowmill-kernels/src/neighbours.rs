//! Neighbour sampling (Hamilton et al. 2017, arXiv 1706.02216, algorithm 2): some neighbours of every seed,
//! some of their neighbours, and so on, as small graphs that a model computes layer by layer.
//!
//! The neighbours drawn for a node depend only on seed, batch, layer and node. So equal seeds give equal
//! samples, whatever else is sampled and on any number of threads.

use rowmill_splitmix::{STEP, absorb, mix};

use crate::{Csr, GraphError, NodeNumber, UniqueScratch, segment_unique};

/// A sample has fewer nodes and fewer neighbours than this: positions are 31-bit numbers.
const NEIGHBOURS_MAX: usize = 1 << 31;
/// Up to this many chosen positions are searched linearly. For more, a bitmap marks the chosen positions.
const LOOKED_THROUGH: usize = 32;

/// How many neighbours a layer draws per node. Edges are drawn, so a neighbour that is listed twice counts as
/// two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// All neighbours.
    All,
    /// This many, each edge at most once; all neighbours if there are no more than that.
    Distinct(usize),
    /// This many, drawn with repetition; none if there are no neighbours.
    Repeated(usize),
}

impl Draw {
    /// Number of neighbours drawn from a list of `degree`.
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

    /// The fan-out as users write it: -1 for all.
    fn fanout(self) -> i64 {
        match self {
            Self::All => -1,
            Self::Distinct(count) | Self::Repeated(count) => count as i64,
        }
    }
}

/// Identifies a stream of random draws, together with layer and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleKey {
    /// The seed of a run.
    pub seed: u64,
    /// The number of the batch.
    pub batch: u64,
}

/// A sample: its nodes, and the neighbours of each layer as positions among the nodes.
///
/// Layer 0 has the neighbours of the seeds, which are the first nodes. Layer `l` has the neighbours of all
/// nodes found by the layers before it. The nodes it adds follow in order of first occurrence. So every layer
/// reads a prefix of the nodes and writes a shorter prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// All nodes, each once, seeds first.
    pub nodes: Vec<u64>,
    /// One layer per draw; the seeds' layer is the first.
    pub layers: Vec<SampledLayer>,
}

/// The neighbours of one layer: those of the node at position `p` are `indices[indptr[p]..indptr[p + 1]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledLayer {
    /// One entry for each node with a list in this layer, and one more.
    pub indptr: Vec<i64>,
    /// Positions of the neighbours among the nodes.
    pub indices: Vec<i64>,
    /// Number of nodes, from the first, that occur in this layer and the layers before it.
    pub sources: usize,
}

/// Sample neighbours of `seeds`, with one layer for each of `draws`.
///
/// Edges from a node to itself are drawn like other edges. A node without neighbours gets an empty list.
///
/// # Errors
/// A seed that is not a node or is given twice, or the first invalid entry of the graph that was read.
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
        // The nodes found so far come first, so they keep their positions among the distinct nodes.
        named.clone_from(&nodes);
        let mut indptr = Vec::with_capacity(nodes.len() + 1);
        indptr.push(0);
        let lists: Vec<_> = nodes.iter().map(|&node| graph.list(node)).collect::<Result<_, _>>()?;
        // Check the limit before allocating: a fan-out with repetition may be any number.
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

/// Random numbers that depend only on a state and the number of draws before.
#[derive(Clone, Copy, Debug)]
struct Random {
    state: u64,
    draws: u64,
}

impl Random {
    /// A number in `[0, end)`; `end` must not be 0. Probabilities differ by less than `end` / 2^64.
    #[inline(always)]
    fn below(&mut self, end: usize) -> usize {
        self.draws += 1;
        let word = mix(self.state.wrapping_add(self.draws.wrapping_mul(STEP)));
        ((u128::from(word) * end as u128) >> 64) as usize
    }
}

/// Draws positions of lists.
#[derive(Debug, Default)]
struct Drawer {
    chosen: Vec<usize>,
    /// A bit for each position of the longest list so far; all bits are 0 between draws.
    taken: Vec<u64>,
}

impl Drawer {
    /// Call `take` with each position drawn from a list of `degree`.
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

    /// Choose `count` distinct positions below `degree`, with equal probability for every such set (Bentley
    /// and Floyd 1987, "Programming pearls: a sample of brilliance").
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
