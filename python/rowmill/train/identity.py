"""The identity of a run: settings and properties of the data that must be equal when it resumes.

It has four kinds of entries. *Structure* never changes. *Rates and policies* are fixed within a part of the data, and may
change when `--continue` begins the next part; so may *columns*, as far as the task allows it. *Data* describes the current part.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rowmill.config.setting import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rowmill.config.config import Config

DATA_ROWS = "data rows"
TRAIN_ROWS = "train rows"
CHECKSUM = "checksum of the first rows"

_DATA = frozenset(
    {
        DATA_ROWS,
        TRAIN_ROWS,
        CHECKSUM,
        "vocabulary",
        # Of a knowledge graph: known entities and relations keep their numbers, so both can only grow.
        "entities",
        "relations",
        "checksum of the triples",
        # Of a graph of nodes.
        "nodes",
        "edges",
        "checksum of the graph",
    }
)
_LATER = frozenset({DATA_ROWS, TRAIN_ROWS, CHECKSUM, "classes", "features"})
"""Entries that older checkpoints of graphs lack."""
_COLUMNS = frozenset({"columns", "item_ids"})
_RATES_AND_POLICIES = frozenset(
    {
        "eviction",
        "admission",
        "rows.lr",
        "train.dense_lr",
        "train.dense_decay_from",
        "train.epochs",
        "train.batch",
        "train.log_every",
        "train.in_flight",
        "train.rows_on_wire",
        "store.staleness_bound",
        "gnn.weight_decay",
        "gnn.dropout",
        "gnn.feature_dropout",
        "gnn.attention_dropout",
        "kge.entity_penalty",
        "kge.relation_penalty",
        "kge.entity_dropout",
        "kge.relation_dropout",
    }
)


def unknown_data(identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity whose data is not known yet, because it is the next file that arrives."""
    return {key: None if key in _DATA else value for key, value in identity.items()}


def is_of_unknown_data(identity: Mapping[str, Any]) -> bool:
    """Whether `unknown_data` made an identity."""
    return DATA_ROWS in identity and identity[DATA_ROWS] is None


def with_data_of(identity: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """An identity with the data of another one."""
    return {**identity, **{key: other.get(key) for key in _DATA & identity.keys()}}


def check_same_run(saved: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise `ConfigError`, naming the first difference, if a saved identity differs from `identity`."""
    if (found := _first_difference(saved, identity)) is not None:
        raise ConfigError(
            f"cannot resume: {found}; use the settings that the run has now, or start a new run with another --out"
        )


def check_same_part(saved: Mapping[str, Any], identity: Mapping[str, Any], data: str) -> None:
    """As `check_same_run`, for a run that goes on with data that it has begun to train on."""
    if (found := _first_difference(saved, identity)) is not None:
        raise ConfigError(
            f"cannot continue: {found}, and {data} is already a part of this run, within which settings are fixed: give the "
            "value that the part began with; it may change with the next data"
        )


def check_same_structure(saved: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise `ConfigError`, naming the first difference, if the structure of a saved identity differs."""
    structure = {
        key: value
        for key, value in identity.items()
        if key not in _DATA | _COLUMNS | _RATES_AND_POLICIES
    }
    if (found := _first_difference(saved, structure)) is not None:
        raise ConfigError(
            f"cannot continue: {found}, which is fixed for all data of a run: drop the setting, or start a new run with "
            "another --out"
        )


def _first_difference(saved: Mapping[str, Any], identity: Mapping[str, Any]) -> str | None:
    # Values of settings that older checkpoints do not have.
    before: dict[str, Any] = {
        "rows.dtype": "fp32",
        "train.task": "ctr",
        "train.dense_optimizer": "adam",
        "train.precision": "fp32",
        "model.attention": [80, 40],
        "model.heads": 2,
        "model.auxiliary": 1.0,
    }
    before |= saved
    for key, value in json.loads(json.dumps(identity)).items():
        if before.get(key) != value and not (key in _LATER and key not in before):
            return f"{key} was {before.get(key)!r} and is {value!r}"
    return None


def identity_of(config: Config) -> dict[str, Any]:
    """The settings that must be equal when a run of any task resumes."""
    settings = config.as_dict()
    return {
        **{f"model.{key}": value for key, value in settings["model"].items()},
        **{f"rows.{key}": value for key, value in settings["rows"].items()},
        **_chosen("eviction", settings["eviction"], config.eviction.rule != "none"),
        **_chosen("admission", settings["admission"], config.admission.min_count is not None),
        **{
            f"train.{key}": settings["train"][key]
            for key in (
                "task",
                "batch",
                "seed",
                "dense_lr",
                "dense_optimizer",
                "precision",
                "dense_decay_from",
                "log_every",
                "plain",
            )
        },
        # None for one step at a time, as in checkpoints older than this setting.
        "train.in_flight": config.train.in_flight if config.train.in_flight > 1 else None,
        # The dense learning rate decays towards the end of the last epoch.
        "train.epochs": config.train.epochs if config.train.dense_decay_from < 1 else None,
        "store.staleness_bound": settings["store"]["staleness_bound"],
    }


def _chosen(section: str, settings: dict[str, Any], used: bool) -> dict[str, Any]:
    """A section of an identity; None if it is not used, as in checkpoints older than the section."""
    return {section: {key: str(value) for key, value in settings.items()} if used else None}
