//! A graph as compressed rows: for every node the list of its neighbours, all lists in one array.

/// A node as it is written in an array: 32 bits halve a large graph.
pub trait NodeNumber: Copy + Sync {
    /// The number; a negative one is no node.
    fn number(self) -> i64;
}

impl NodeNumber for i32 {
    #[inline(always)]
    fn number(self) -> i64 {
        self.into()
    }
}

impl NodeNumber for i64 {
    #[inline(always)]
    fn number(self) -> i64 {
        self
    }
}

/// The neighbours of node `v` of `0..nodes` are `indices[indptr[v]..indptr[v + 1]]`.
///
/// The arrays may be maps of files, larger than memory: making one looks at both ends alone. Every entry that is
/// used later is looked at first, so a wrong one is an error, whoever wrote it.
#[derive(Clone, Copy, Debug)]
pub struct Csr<'a, N> {
    indptr: &'a [i64],
    indices: &'a [N],
}

/// A graph, or seeds, that cannot be sampled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// There is no first entry.
    #[error("indptr is empty: a graph of n nodes has n + 1 entries there, the first of them 0")]
    Empty,
    /// The lists do not cover the neighbours.
    #[error("indptr must run from 0 to the number of indices ({edges}), got {first}..{last}")]
    Ends {
        /// Number of neighbours in all lists.
        edges: usize,
        /// First entry.
        first: i64,
        /// Last entry.
        last: i64,
    },
    /// The list of a node has no beginning or end.
    #[error(
        "indptr must ascend from 0 to the number of indices ({edges}), but indptr[{node}] = {start} and \
         indptr[{next}] = {end}", next = node + 1
    )]
    Order {
        /// Whose list.
        node: u64,
        /// Where it begins.
        start: i64,
        /// Where it ends.
        end: i64,
        /// Number of neighbours in all lists.
        edges: usize,
    },
    /// A neighbour that is no node.
    #[error("indices[{position}] = {node}, but the graph has {nodes} nodes: numbers are 0 to {nodes} - 1")]
    Neighbour {
        /// Where.
        position: usize,
        /// The offending number.
        node: i64,
        /// Nodes of the graph.
        nodes: u64,
    },
    /// A seed that is no node.
    #[error("seeds[{position}] = {node}, but the graph has {nodes} nodes: numbers are 0 to {nodes} - 1")]
    Seed {
        /// Where.
        position: usize,
        /// The offending number.
        node: i64,
        /// Nodes of the graph.
        nodes: u64,
    },
    /// A seed that was given before.
    #[error("seeds[{position}] = {node} is there twice: give every seed once")]
    SeedAgain {
        /// Where it is for the second time.
        position: usize,
        /// The seed.
        node: u64,
    },
    /// More neighbours than 31 bits number.
    #[error(
        "a sample of {seeds} seeds with fan-out {fanout} in layer {layer} would have {neighbours} neighbours, and a \
         sample holds fewer than 2^31: give fewer seeds or smaller fan-outs"
    )]
    TooMany {
        /// Seeds given.
        seeds: usize,
        /// The fan-out of the layer, -1 for all neighbours.
        fanout: i64,
        /// The first layer that is too much, from 0.
        layer: usize,
        /// Neighbours of this layer and those before it.
        neighbours: usize,
    },
}

impl<'a, N: NodeNumber> Csr<'a, N> {
    /// A graph of `indptr.len() - 1` nodes; only both ends of `indptr` are looked at.
    ///
    /// # Errors
    /// If these are not 0 and the number of indices.
    pub fn new(indptr: &'a [i64], indices: &'a [N]) -> Result<Self, GraphError> {
        let (&[first, ..], &[.., last]) = (indptr, indptr) else {
            return Err(GraphError::Empty);
        };
        if first != 0 || usize::try_from(last) != Ok(indices.len()) {
            return Err(GraphError::Ends { edges: indices.len(), first, last });
        }
        Ok(Self { indptr, indices })
    }

    /// Nodes of the graph.
    pub fn nodes(&self) -> u64 {
        self.indptr.len() as u64 - 1
    }

    /// Look at every entry once.
    ///
    /// # Errors
    /// The first entry that is wrong.
    pub fn check(&self) -> Result<(), GraphError> {
        for node in 0..self.nodes() {
            self.list(node)?;
        }
        for position in 0..self.indices.len() {
            self.neighbour(position)?;
        }
        Ok(())
    }

    /// Where the list of a node begins in the array of neighbours, and how many there are.
    ///
    /// # Panics
    /// If it is no node of this graph.
    pub(crate) fn list(&self, node: u64) -> Result<(usize, usize), GraphError> {
        let (start, end) = (self.indptr[node as usize], self.indptr[node as usize + 1]);
        let edges = self.indices.len();
        if 0 <= start && start <= end && end as u64 <= edges as u64 {
            return Ok((start as usize, (end - start) as usize));
        }
        Err(GraphError::Order { node, start, end, edges })
    }

    /// The neighbour at a position of the array.
    #[inline(always)]
    pub(crate) fn neighbour(&self, position: usize) -> Result<u64, GraphError> {
        let node = self.indices[position].number();
        if (node as u64) < self.nodes() {
            return Ok(node as u64);
        }
        Err(GraphError::Neighbour { position, node, nodes: self.nodes() })
    }
}
