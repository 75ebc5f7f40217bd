"""The identity of a run of `--task gnn`: what must be equal when it resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill.train.identity import identity_of

if TYPE_CHECKING:
    from rowmill.config.config import Config
    from rowmill.gnn.node_graph import NodeGraph


def node_identity(config: Config, graph: NodeGraph) -> dict[str, Any]:
    """The settings of the task and the checksum of its graph, by name."""
    settings = config.as_dict()["gnn"]
    # Samples do not depend on the number of threads, and each split is a run of its own.
    del settings["sample_threads"], settings["splits"]
    return {
        "nodes": graph.nodes,
        "edges": graph.edges,
        "checksum of the graph": graph.fingerprint(),
        **{f"gnn.{key}": value for key, value in settings.items()},
        **identity_of(config),
    }
