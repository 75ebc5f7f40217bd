"""The identity of a run of `--task gnn`: what must be equal when it resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill.train.identity import CHECKSUM, DATA_ROWS, TRAIN_ROWS, identity_of

if TYPE_CHECKING:
    from rowmill.config.config import Config
    from rowmill.gnn.node_graph import NodeGraph, NodeSplit


def node_identity(config: Config, graph: NodeGraph, split: NodeSplit) -> dict[str, Any]:
    """The settings of the task and the checksum of its graph, by name."""
    settings = config.as_dict()["gnn"]
    # Samples do not depend on the number of threads, and each split is a run of its own.
    del settings["sample_threads"], settings["splits"]
    return {
        "nodes": graph.nodes,
        "edges": graph.edges,
        "checksum of the graph": (check := graph.fingerprint()),
        DATA_ROWS: graph.nodes,
        TRAIN_ROWS: len(split.train),
        CHECKSUM: check,
        "classes": graph.classes,
        "features": None if graph.features is None else graph.features.dim,
        **{f"gnn.{key}": value for key, value in settings.items()},
        **identity_of(config),
    }
