"""Measured cells, each kept as a file: a run that was interrupted goes on where it was."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.provenance import Source

Cell = dict[str, Any]


class Cells:
    """Cells by what they measure.

    A cell is found again if it was measured with the same settings and the same code, from a clean tree.

    Args:
        folder: Where they are kept; None: nowhere.
        settings: What all cells of this run have in common.
    """

    def __init__(self, folder: Path | None, settings: Cell) -> None:
        self._folder = folder
        self._settings = settings
        self._source = Source.now()
        self.found: list[Cell] = []

    def measure(self, work: Callable[[], Cell], **what: Any) -> Cell:
        """The cell of what these words and numbers say, measured by `work` if it is not there."""
        cell = self._read(what)
        if cell is None:
            cell = {**what, **work()}
            self._write(what, cell)
            print(" ".join(f"{key}={value}" for key, value in what.items()), file=sys.stderr)
        self.found.append(cell)
        return cell

    def _file(self, what: Cell) -> Path | None:
        name = "-".join(str(value) for value in what.values())
        return None if self._folder is None else self._folder / f"{name}.json"

    def _read(self, what: Cell) -> Cell | None:
        file = self._file(what)
        if file is None or not file.is_file():
            return None
        kept = json.loads(file.read_text())
        same = kept["settings"] == self._settings and kept["source"] == asdict(self._source)
        return kept["cell"] if same and not self._source.dirty else None

    def _write(self, what: Cell, cell: Cell) -> None:
        file = self._file(what)
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            "cell": cell,
            "settings": self._settings,
            "source": asdict(self._source),
            "machine": common.machine(),
        }
        draft = file.with_suffix(".new")
        draft.write_text(json.dumps(kept, indent=1) + "\n")
        draft.rename(file)
