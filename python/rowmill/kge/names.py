"""Names of entities and relations by number, and numbers by name; `rowmill train` writes them beside a run."""

# pyarrow has no types: everything read through it is unknown.
# pyright: reportUnknownArgumentType=none, reportUnknownParameterType=none, reportUnknownVariableType=none

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rowmill._extras import extra
from rowmill.errors import DataError

with extra("train"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as csv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

NAME_FILES = {"entity": "entities.txt", "relation": "relations.txt"}
_NEAREST = 3
_COMPARED_MAX = 20_000
"""Names of about the right length that are compared with an unknown one."""


@dataclass(frozen=True)
class Names:
    """Names by number of one kind, "entity" or "relation"; None: only numbers are known."""

    kind: str
    count: int
    names: pa.Array | None

    @classmethod
    def of_run(
        cls, kind: str, count: int, saved: Callable[[str], Path | None], out: Path | None
    ) -> Names | None:
        """The names of a run at a checkpoint; None if they are missing.

        Args:
            kind: "entity" or "relation".
            count: Number of names at the checkpoint.
            saved: The file that the checkpoint has of a role. Checkpoints of older builds have no names.
            out: The folder of the run, for these. Its files have more names than the checkpoint if the run has begun with new
                ones, and was killed before it saved them.
        """
        name = NAME_FILES[kind]
        file = saved(name.removesuffix(".txt"))
        if file is None and out is not None and (out / name).is_file():
            file = out / name
        return None if file is None else cls._read(kind, file, count)

    @classmethod
    def _read(cls, kind: str, file: Path, count: int) -> Names | None:
        """The first names in a file, one a line; None if it has fewer."""
        table = csv.read_csv(
            file,
            csv.ReadOptions(column_names=["name"]),
            csv.ParseOptions(
                delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False
            ),
            csv.ConvertOptions(column_types={"name": pa.string()}, strings_can_be_null=False),
        )
        if table.num_rows < count:
            return None
        return cls(kind, count, table["name"].slice(0, count).combine_chunks())

    def of(self, numbers: NDArray[np.int64]) -> Any:
        """The names of numbers, as an Arrow array; the numbers themselves if there are no names."""
        return pa.array(numbers) if self.names is None else self.names.take(pa.array(numbers))

    def numbers(self, values: Any, where: str) -> NDArray[np.int64]:
        """The numbers of values: integers are numbers, texts are names, and `#N` is the number N where it is no name.

        Args:
            values: An Arrow array.
            where: Name of the file and the column, for messages; the row is added, counted from 1.

        Raises:
            DataError: A value is unknown; the message has the nearest names.
        """
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if values.null_count:
            row = int(np.argmax(np.asarray(values.is_null())))
            raise DataError(f"{where}, row {row + 1}: the {self.kind} is missing; drop such rows")
        if pa.types.is_integer(values.type):
            found = np.asarray(values.cast(pa.int64()))
        elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            found = self._of_texts(values.cast(pa.string()))
        else:
            raise DataError(
                f"{where} holds {values.type}; give names as text, or numbers as integers"
            )
        wrong = np.flatnonzero((found < 0) | (found >= self.count))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{where}, row {row + 1}: {self._unknown(values[row].as_py(), len(wrong))}"
            )
        return found

    def known(self, values: Any) -> NDArray[np.int64]:
        """The numbers of texts; -1 for those that are no names."""
        return self._of_texts(values.combine_chunks())

    def number(self, value: str | int, argument: str) -> int:
        """The number of one value, as `numbers` takes it; raises `DataError` about `argument`."""
        array = pa.array([value])
        found = np.asarray(array) if isinstance(value, int) else self._of_texts(array)
        if not 0 <= int(found[0]) < self.count:
            raise DataError(f"{argument}: {self._unknown(value, 1)}")
        return int(found[0])

    def _of_texts(self, texts: pa.Array) -> NDArray[np.int64]:
        if self.names is None:
            found = np.full(len(texts), -1)
        else:
            options = pc.SetLookupOptions(value_set=self.names)
            places = pc.call_function("index_in", [texts], options)
            found = np.asarray(places.cast(pa.int64()).fill_null(-1))
        unnamed = np.flatnonzero(found < 0)
        if len(unnamed):
            found = found.copy()
            rest = texts.take(pa.array(unnamed)).to_pylist()
            found[unnamed] = [_written_number(text, bare=self.names is None) for text in rest]
        return found

    def _unknown(self, value: str | int, count: int) -> str:
        """What is wrong with an unknown value."""
        more = "" if count == 1 else f" ({count} such rows)"
        if isinstance(value, int) or self.names is None:
            text = (
                ""
                if isinstance(value, int)
                else (
                    ". The run has no names: give numbers, or its folder (--out of `rowmill train`) with "
                    f"{NAME_FILES[self.kind]}, or --graph"
                )
            )
            return f"{self.kind} numbers must be in [0, {self.count:,}), got {value!r}{more}{text}"
        near = self._nearest(value)
        told = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        return (
            f"{self.kind} {value!r} is not one of the {self.count:,} that the run knows{more}{told}"
        )

    def _nearest(self, name: str) -> list[str]:
        assert self.names is not None
        lowered = pc.call_function("utf8_lower", [self.names])
        same = pc.call_function("equal", [lowered, pa.scalar(name.lower())])
        found = self.names.filter(same)[:_NEAREST].to_pylist()
        lengths = np.asarray(pc.call_function("utf8_length", [self.names]))
        close = np.flatnonzero(np.abs(lengths - len(name)) <= 2 + len(name) // 4)[:_COMPARED_MAX]
        compared = self.names.take(pa.array(close)).to_pylist()
        found += difflib.get_close_matches(name, compared, _NEAREST)
        return list(dict.fromkeys(found))[:_NEAREST]


def _written_number(text: str, *, bare: bool) -> int:
    digits = text.removeprefix("#")
    written = digits.isdecimal() and len(digits) <= 18 and (bare or digits != text)
    return int(digits) if written else -1
