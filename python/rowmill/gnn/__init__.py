"""Graph neural networks: samples of neighbours, and models over the blocks that they consist of."""

from rowmill.gnn.batches import NodeBatch, NodeBatches
from rowmill.gnn.gat import GAT, GatLayer
from rowmill.gnn.sage import GraphSAGE, SageLayer
from rowmill.gnn.sampler import Block, NeighbourSampler, Sample

__all__ = [
    "GAT",
    "Block",
    "GatLayer",
    "GraphSAGE",
    "NeighbourSampler",
    "NodeBatch",
    "NodeBatches",
    "SageLayer",
    "Sample",
]
