"""The identity of a run of `--task kge`: what must be equal when it resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill.train.identity import identity_of

if TYPE_CHECKING:
    from rowmill.config.config import Config
    from rowmill.kge.graph import Graph


def graph_identity(config: Config, graph: Graph) -> dict[str, Any]:
    """The settings of the task and the checksum of its graph, by name."""
    settings = config.as_dict()["kge"]
    # The number of validations only adds points to the curves.
    del settings["validate_every"]
    return {
        "entities": graph.entity_count,
        "relations": graph.relation_count,
        "checksum of the triples": graph.fingerprint(),
        **{f"kge.{key}": value for key, value in settings.items()},
        **identity_of(config),
        # No dense learning rate decays towards the end, so a run may resume with more epochs.
        "train.epochs": None,
    }
