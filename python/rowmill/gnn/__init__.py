"""Graph neural networks for node classification: reading graphs, neighbour sampling, GraphSAGE and GAT."""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.gnn.gat import GAT, GatLayer
    from rowmill.gnn.loaded_nodes import LoadedNodes
    from rowmill.gnn.metrics import NodeMetrics
    from rowmill.gnn.node_batch import NodeBatch, NodeBatches
    from rowmill.gnn.node_graph import Features, NodeGraph, NodeSplit, read_node_graph
    from rowmill.gnn.sage import GraphSAGE, SageLayer
    from rowmill.gnn.sampler import Block, NeighbourSampler, Sample

__all__ = [
    "GAT",
    "Block",
    "Features",
    "GatLayer",
    "GraphSAGE",
    "LoadedNodes",
    "NeighbourSampler",
    "NodeBatch",
    "NodeBatches",
    "NodeGraph",
    "NodeMetrics",
    "NodeSplit",
    "SageLayer",
    "Sample",
    "read_node_graph",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "node_batch": (
            "NodeBatch",
            "NodeBatches",
        ),
        "gat": (
            "GAT",
            "GatLayer",
        ),
        "loaded_nodes": ("LoadedNodes",),
        "metrics": ("NodeMetrics",),
        "node_graph": (
            "Features",
            "NodeGraph",
            "NodeSplit",
            "read_node_graph",
        ),
        "sage": (
            "GraphSAGE",
            "SageLayer",
        ),
        "sampler": (
            "Block",
            "NeighbourSampler",
            "Sample",
        ),
    },
)
