"""What came of training by settings, each kept as a file: a benchmark that was interrupted goes on where it was."""

import argparse
import json
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import common
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

    def measure(self, name: str, config: Config) -> None:
        """Train and test, unless that was done already with the same settings; what was interrupted goes on."""
        if self.result(name, config) is not None:
            return
        run = self._folder / name
        # Without a checkpoint `resume` begins at the first example.
        report = train(
            replace(config, train=replace(config.train, out=run, resume=True)), Console(quiet=True)
        )
        result = {
            "test": report["test"],
            "curve": [point for point in report["curve"] if _has_valid(point)],
            "seconds": report["run"]["seconds"],
            "settings": _identity(config),
            "machine": common.machine(),
        }
        # It is there as a whole or not at all.
        draft = self._file(name).with_suffix(".new")
        draft.write_text(json.dumps(result, indent=1) + "\n")
        draft.rename(self._file(name))
        shutil.rmtree(run)

    def result(self, name: str, config: Config) -> dict[str, Any] | None:
        """What came of a run with these settings, if there was one."""
        file = self._file(name)
        result = json.loads(file.read_text()) if file.is_file() else None
        return result if result and result["settings"] == _identity(config) else None

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _has_valid(point: dict[str, Any]) -> bool:
    return any(name.startswith("valid_") for name in point)


def _identity(config: Config) -> dict[str, Any]:
    """What a result belongs to: settings without places."""
    settings = config.as_dict()
    del settings["data"]["path"], settings["train"]["out"]
    return json.loads(json.dumps(settings))
