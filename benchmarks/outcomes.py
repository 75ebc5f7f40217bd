"""What came of training by settings, each kept as a file: a benchmark that was interrupted goes on where it was."""

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
    """What every benchmark takes, which files of settings, and where outcomes are kept."""
    parser = common.argument_parser(description)

    def names(text: str) -> list[str]:
        given = text.split(",")
        if unknown := set(given) - set(known):
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}; known: {', '.join(known)}"
            )
        return given

    parser.add_argument(
        "--settings", type=names, default=list(known), help="names, with commas (default: all)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=common.REPOSITORY / folder,
        help=f"where the files of runs are kept ({folder})",
    )
    return parser


class Outcomes:
    """Results of runs by their names, each a file below a folder, with the settings it belongs to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def measure(self, name: str, config: Config) -> dict[str, Any]:
        """Train and test, unless that was done already with the same settings; what was interrupted goes on."""
        found = self.result(name, config)
        if found is not None:
            return found
        run = self._folder / name
        source = Source.now()
        print(f"{run}: training", file=sys.stderr)
        # Without a checkpoint `resume` begins at the first example.
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
        # It is there as a whole or not at all.
        draft = self._file(name).with_suffix(".new")
        draft.write_text(json.dumps(result, indent=1) + "\n")
        draft.rename(self._file(name))
        shutil.rmtree(run)
        return result

    def result(self, name: str, config: Config) -> dict[str, Any] | None:
        """What came of a run with these settings, if there was one; a clean tree takes no results of a dirty one."""
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
    """What a result belongs to: settings without places."""
    settings = config.as_dict()
    del settings["data"]["path"], settings["train"]["out"]
    return json.loads(json.dumps(settings))
