"""The identity of a run of `--task kge`: what must be equal when it resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill.train.identity import CHECKSUM, DATA_ROWS, TRAIN_ROWS, identity_of

if TYPE_CHECKING:
    from rowmill.config.config import Config
    from rowmill.kge.graph import Graph


def graph_identity(config: Config, graph: Graph, *, examples: int) -> dict[str, Any]:
    """The settings of the task and the checksum of its graph, by name; `examples` is their number in an epoch."""
    settings = config.as_dict()["kge"]
    # The number of validations only adds points to the curves.
    del settings["validate_every"]
    return {
        "entities": graph.entity_count,
        "relations": graph.relation_count,
        "checksum of the triples": (check := graph.fingerprint()),
        DATA_ROWS: len(graph.train) + len(graph.valid) + len(graph.test),
        TRAIN_ROWS: examples,
        CHECKSUM: check,
        **{f"kge.{key}": value for key, value in settings.items()},
        **identity_of(config),
        # No dense learning rate decays towards the end, so a run may resume with more epochs.
        "train.epochs": None,
    }
