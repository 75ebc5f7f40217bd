"""Results of training runs, each kept in a file, so that an interrupted benchmark continues where it stopped."""

import argparse
import json
import shutil
import sys
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import common
from benchmarks.provenance import Source
from rowmill.config import Config
from rowmill.train import train


def parser_of_settings(
    description: str | None, known: Collection[str], folder: str
) -> argparse.ArgumentParser:
    """A parser with the arguments of these benchmarks: which settings to run and where to keep results."""
    parser = common.argument_parser(description)

    def names(text: str) -> list[str]:
        given = text.split(",")
        if unknown := set(given) - set(known):
            raise argparse.ArgumentTypeError(
                f"unknown settings {', '.join(sorted(unknown))}; use {', '.join(known)}"
            )
        return given

    parser.add_argument(
        "--settings",
        type=names,
        default=list(known),
        help="names of settings, separated by commas (default: all)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=common.REPOSITORY / folder,
        help=f"folder for the results of runs (default: {folder})",
    )
    return parser


class Outcomes:
    """Results of runs by name. Each is a file in a folder and records the settings of its run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def measure(self, name: str, config: Config) -> dict[str, Any]:
        """Train and test, or return the stored result of the same settings. An interrupted run is resumed."""
        found = self.result(name, config)
        if found is not None:
            return found
        run = self._folder / name
        source = Source.now()
        print(f"{run}: training", file=sys.stderr)
        # Without a checkpoint, `resume` starts at the first example.
        report = train(
            replace(config, train=replace(config.train, out=run, resume=True)), Console(stderr=True)
        )
        result = {
            "test": report["test"],
            "curve": [point for point in report["curve"] if _has_valid(point)],
            "seconds": report["run"]["seconds"],
            "settings": _identity(config),
            "machine": common.machine(),
            "source": asdict(source.until_now()),
        }
        # Renamed when complete, so the file is either whole or missing.
        draft = self._file(name).with_suffix(".new")
        draft.write_text(json.dumps(result, indent=1) + "\n")
        draft.rename(self._file(name))
        shutil.rmtree(run)
        return result

    def result(self, name: str, config: Config) -> dict[str, Any] | None:
        """The stored result of a run with these settings, or None. With a clean tree, results of a dirty one are ignored."""
        file = self._file(name)
        if not file.is_file():
            return None
        result = json.loads(file.read_text())
        dirty = result.get("source", {"dirty": True})["dirty"]
        usable = result["settings"] == _identity(config) and (not dirty or Source.now().dirty)
        return result if usable else None

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _has_valid(point: dict[str, Any]) -> bool:
    return any(name.startswith("valid_") for name in point)


def _identity(config: Config) -> dict[str, Any]:
    """The settings that a result depends on: all but paths."""
    settings = config.as_dict()
    del settings["data"]["path"], settings["train"]["out"]
    return json.loads(json.dumps(settings))
