"""Click logs: reading, features, batches, and a generator of logs whose best possible AUC is known. Knowledge graphs. Graphs of nodes."""

from rowmill.data.batches import Batch, batches
from rowmill.data.block import MISSING_ID, Block
from rowmill.data.errors import DataError
from rowmill.data.features import FullIds, HashedIds, IdWay, Vocabulary, fit_vocabulary, id_way
from rowmill.data.graph import Graph, read_graph
from rowmill.data.node_graph import Features, NodeGraph, NodeSplit, read_node_graph
from rowmill.data.schema import CRITEO, Schema, load_schema
from rowmill.data.source import Source, open_source

__all__ = [
    "CRITEO",
    "MISSING_ID",
    "Batch",
    "Block",
    "DataError",
    "Features",
    "FullIds",
    "Graph",
    "HashedIds",
    "IdWay",
    "NodeGraph",
    "NodeSplit",
    "Schema",
    "Source",
    "Vocabulary",
    "batches",
    "fit_vocabulary",
    "id_way",
    "load_schema",
    "open_source",
    "read_graph",
    "read_node_graph",
]
