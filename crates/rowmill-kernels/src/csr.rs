//! A graph in compressed sparse rows: the lists of neighbours of all nodes in one array.

/// The type of node numbers in an array. 32-bit numbers halve the size of a large graph.
pub trait NodeNumber: Copy + Sync {
    /// The number. A negative number is not a node.
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

/// The neighbours of node `v` in `[0, nodes)` are `indices[indptr[v]..indptr[v + 1]]`.
///
/// The arrays may be memory-mapped files larger than memory, so the constructor reads only the first and last
/// entry of `indptr`. Every other entry is checked when it is used; an invalid entry is an error.
#[derive(Clone, Copy, Debug)]
pub struct Csr<'a, N> {
    indptr: &'a [i64],
    indices: &'a [N],
}

/// Errors of graphs and seeds for sampling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// `indptr` has no entries.
    #[error("indptr is empty: a graph of n nodes needs n + 1 entries, the first of them 0")]
    Empty,
    /// `indptr` does not cover the array of neighbours.
    #[error("indptr must run from 0 to the number of indices ({edges}), got {first}..{last}")]
    Ends {
        /// Number of neighbours in all lists.
        edges: usize,
        /// First entry.
        first: i64,
        /// Last entry.
        last: i64,
    },
    /// Entries of `indptr` descend or are out of range.
    #[error(
        "indptr must ascend from 0 to the number of indices ({edges}), but indptr[{node}] = {start} and \
         indptr[{next}] = {end}", next = node + 1
    )]
    Order {
        /// The node with this list.
        node: u64,
        /// Start of its list.
        start: i64,
        /// End of its list.
        end: i64,
        /// Number of neighbours in all lists.
        edges: usize,
    },
    /// A neighbour is not a node of the graph.
    #[error(
        "indices[{position}] = {node}, but the graph has {nodes} nodes: node numbers are 0 to {nodes} - 1"
    )]
    Neighbour {
        /// Position in `indices`.
        position: usize,
        /// The invalid number.
        node: i64,
        /// Number of nodes of the graph.
        nodes: u64,
    },
    /// A seed is not a node of the graph.
    #[error("seeds[{position}] = {node}, but the graph has {nodes} nodes: node numbers are 0 to {nodes} - 1")]
    Seed {
        /// Position in the seeds.
        position: usize,
        /// The invalid number.
        node: i64,
        /// Number of nodes of the graph.
        nodes: u64,
    },
    /// A seed occurs twice.
    #[error("seeds[{position}] = {node} is repeated: give every seed once")]
    SeedAgain {
        /// Position of the second occurrence.
        position: usize,
        /// The seed.
        node: u64,
    },
    /// The sample would have more neighbours than 31-bit positions can number.
    #[error(
        "a sample of {seeds} seeds with fan-out {fanout} in layer {layer} would have {neighbours} neighbours, but a \
         sample must have fewer than 2^31: give fewer seeds or smaller fan-outs"
    )]
    TooMany {
        /// Number of seeds.
        seeds: usize,
        /// Fan-out of the layer; -1 for all neighbours.
        fanout: i64,
        /// The first layer above the limit, counted from 0.
        layer: usize,
        /// Number of neighbours of this layer and the layers before it.
        neighbours: usize,
    },
}

impl<'a, N: NodeNumber> Csr<'a, N> {
    /// A graph of `indptr.len() - 1` nodes. Reads only the first and last entry of `indptr`.
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

    /// Number of nodes of the graph.
    pub fn nodes(&self) -> u64 {
        self.indptr.len() as u64 - 1
    }

    /// Check every entry of the graph.
    ///
    /// # Errors
    /// The first invalid entry.
    pub fn check(&self) -> Result<(), GraphError> {
        for node in 0..self.nodes() {
            self.list(node)?;
        }
        for position in 0..self.indices.len() {
            self.neighbour(position)?;
        }
        Ok(())
    }

    /// Start of a node's list in the array of neighbours, and its length.
    ///
    /// # Panics
    /// If `node` is not a node of this graph.
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
