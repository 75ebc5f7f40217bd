"""The identity of a run: settings and properties of the data that must be equal when it resumes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rowmill.config.setting import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rowmill.config.config import Config


def check_same_run(saved: str, identity: Mapping[str, Any]) -> None:
    """Raise `ConfigError`, naming the first difference, if a saved identity (JSON) differs from `identity`."""
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
    before |= json.loads(saved)
    for key, value in json.loads(json.dumps(identity)).items():
        if before.get(key) != value:
            raise ConfigError(
                f"cannot resume: {key} was {before.get(key)!r} and is {value!r}; "
                "use the settings of the first run, or start a new run with another --out"
            )


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
