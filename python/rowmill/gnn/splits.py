"""Train on several splits of a graph, and report the mean and standard deviation of the metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from rowmill.config.setting import ConfigError
from rowmill.gnn.task import check_splits
from rowmill.train.out import run_folder
from rowmill.train.ranks import started_ranks
from rowmill.train.replacement import Replacement
from rowmill.train.report import write_whole
from rowmill.train.run import train

if TYPE_CHECKING:
    from rich.console import Console

    from rowmill.config.config import Config


def train_splits(config: Config, console: Console) -> dict[str, Any]:
    """Train on every split, each with its own folder and seed; finished runs are not repeated.

    With `train.replace`, the old runs are kept until the first new one is complete.

    Returns:
        The content of `splits.json` in `train.out`: the mean, the standard deviation and the value per split of each test
        metric; the same for the best validation metrics; and the seconds of training.

    Raises:
        ConfigError: A setting does not work with several splits, or the folder of a split holds another run.
    """
    for name, value in (
        ("store.path", config.store.path),
        ("checkpoint.push", config.checkpoint.push),
    ):
        if value is not None:
            raise ConfigError(
                f"{name} does not work with gnn.splits = {config.gnn.splits}, which makes several runs: remove {name}"
            )
    if started_ranks() is not None:
        raise ConfigError(
            f"gnn.splits = {config.gnn.splits} does not work with many ranks: start the command without torchrun, or run one "
            "split at a time with --split"
        )
    # The folders of all splits are checked before the first run starts.
    with run_folder(config) as folder:
        check_splits(config, console)
        if config.train.replace:
            Replacement.begin(config)
        folder.begin(console)
        return _train_all(folder.config, console)


def _train_all(config: Config, console: Console) -> dict[str, Any]:
    out, first = config.train.out, config.gnn.split
    numbers = range(first, first + config.gnn.splits)
    reports: list[dict[str, Any]] = []
    for number in numbers:
        console.print(f"Split {number}", highlight=False)
        reports.append(train(config_of_split(config, number), console))
        if (replaced := Replacement.found(out)) is not None:
            replaced.remove()
    result = {
        "splits": list(numbers),
        "test": _together([report["test"] for report in reports]),
        "valid": _together([best_of_valid(report["curve"]) for report in reports]),
        "seconds": sum(report["run"]["seconds"] for report in reports),
        "config": config.as_dict(),
        "machine": reports[-1]["machine"],
    }
    write_whole(out / "splits.json", json.dumps(result, indent=2) + "\n")
    return result


def config_of_split(config: Config, number: int) -> Config:
    """The settings of the run on one split, with its own folder and seed."""
    seed = config.train.seed + number - config.gnn.split
    return replace(
        config,
        gnn=replace(config.gnn, split=number, splits=1),
        train=replace(
            config.train, seed=seed, out=config.train.out / f"split-{number}", replace=False
        ),
    )


def best_of_valid(curve: list[dict[str, Any]]) -> dict[str, float | None]:
    """The highest validation accuracy and AUC of a learning curve."""
    keys = ("valid_accuracy", "valid_auc")
    found = {key: [point[key] for point in curve if key in point] for key in keys}
    # A split whose validation nodes are all of one class has no AUC.
    known = {key: [value for value in values if value is not None] for key, values in found.items()}
    return {key: max(known[key], default=None) for key, values in found.items() if values}


def _together(tests: list[dict[str, float | None]]) -> dict[str, dict[str, Any]]:
    together: dict[str, dict[str, Any]] = {}
    for name in tests[0]:
        values = [test[name] for test in tests]
        known = [value for value in values if value is not None]
        together[name] = {
            "mean": mean(known) if known else None,
            "deviation": stdev(known) if len(known) > 1 else None,
            "values": values,
        }
    return together
