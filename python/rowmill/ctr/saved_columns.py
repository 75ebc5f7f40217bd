"""`SavedColumns`: the columns of a run's log, and its earlier data, as its last checkpoint has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rowmill.ctr.data import open_source
from rowmill.ctr.data.schema import schema_from
from rowmill.ctr.identity import CHECKED_ROWS, FirstRows
from rowmill.errors import DataError, StoreCorrupt
from rowmill.train.found_run import described_run, has_checkpoint, rows_of, saved_sizes
from rowmill.train.identity import CHECKSUM, DATA_ROWS
from rowmill.train.parts import Part
from rowmill.train.run_files import files_of, read_run_file
from rowmill.train.state import RunState

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from rowmill.config.config import Config
    from rowmill.ctr.data import Schema


@dataclass(frozen=True)
class KnownData:
    """Data that begins with the rows of a part.

    Attributes:
        part: The part whose first rows are those of the data.
        rows: Number of rows of the data.
        is_current: Whether this is the current part.
    """

    part: Part
    rows: int
    is_current: bool


@dataclass(frozen=True)
class SavedColumns:
    """The description of the log in a checkpoint of a click model.

    Attributes:
        schema: The columns.
        vocabulary: The values of each id column by its name, with those of dropped columns; empty without a vocabulary.
        parts: The parts that are complete, and the current one last if there is one, with their columns.
        has_current: Whether there is a current part.
        tables: The number of ids of each table; None: any 64-bit id.
    """

    schema: Schema
    vocabulary: dict[str, NDArray[np.int64]]
    parts: tuple[tuple[Part, Schema], ...]
    has_current: bool
    tables: dict[str, int | None]

    @classmethod
    def found(cls, config: Config) -> Self | None:
        """The columns of the run that is resumed or continued; None without a checkpoint that can be read."""
        rows = rows_of(config)
        if not config.train.resume or not has_checkpoint(rows):
            return None
        try:
            described = described_run(rows)
            names = {} if described is None else files_of(described)
            if described is None or "schema" not in names:
                return None
            files = {
                role: read_run_file(rows, names[role])
                for role in ("schema", "vocabulary", "dropped vocabulary")
                if role in names
            }
        except StoreCorrupt:
            return None  # Opening the rows says more.
        schema = schema_from(files["schema"])
        values: dict[str, Any] = dict(zip(schema.ids, files.get("vocabulary", ()), strict=False))
        values |= files.get("dropped vocabulary", {})
        state = RunState.from_json(described["state"])
        parts: list[tuple[Part, Schema]] = []
        columns = schema
        for part in reversed(state.parts):
            columns = columns if part.columns is None else schema_from(part.columns)
            parts.insert(0, (part, columns))
        identity: dict[str, Any] = json.loads(described["identity"])
        if not state.is_between_parts:
            current = Part(state.data, identity[DATA_ROWS], identity[CHECKSUM], state.step, 0, {})
            parts.append((current, schema))
        return cls(
            schema,
            {name: np.array(known, np.int64) for name, known in values.items()},
            tuple(parts),
            not state.is_between_parts,
            saved_sizes(rows),
        )

    def known(self, path: Path, schema: Schema) -> KnownData | None:
        """Whether data begins with the rows of a part whose checksum the data itself does not have.

        That is a part with other columns, since its checksum is of these, or one of fewer rows than are checked. The first rows
        of the data are read once with the columns of each part.
        """
        first: dict[tuple[Any, ...], FirstRows | None] = {}
        for number, (part, of) in enumerate(self.parts):
            key = _read_by(of)
            if key == _read_by(schema) and part.rows >= CHECKED_ROWS:
                continue
            if key not in first:
                first[key] = _first_rows(path, of)
            found = first[key]
            if found is None:
                continue
            if found.begin_with(part) or (
                key != _read_by(schema) and found.check() == part.checksum
            ):
                last = number + 1 == len(self.parts)
                return KnownData(part, found.rows, last and self.has_current)
        return None


def _read_by(schema: Schema) -> tuple[Any, ...]:
    """What the checksum of rows depends on."""
    return (*schema.labels, None, *schema.dense, None, *schema.ids, schema.histories, schema.places)


def _first_rows(path: Path, schema: Schema) -> FirstRows | None:
    """The first rows of data; None if it cannot be read with these columns."""
    try:
        return FirstRows(open_source(path, schema))
    except DataError:
        return None
